"""The chat template of the default weights: as their own, which drops tools without a word, and with tools."""

SMOLLM2 = """\
{%- if messages[0]['role'] == 'system' -%}
  {%- set told = messages[0]['content'] -%}{%- set rest = messages[1:] -%}
{%- else -%}
  {%- set told = 'You are a helpful AI assistant named SmolLM, trained by Hugging Face' -%}{%- set rest = messages -%}
{%- endif -%}
{{- '<|im_start|>system\\n' + told -}}
{%- if tools -%}
  {{- '\\n\\nYou can call these tools:\\n<tools>' -}}
  {%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
  {{- '\\n</tools>\\nTo call one, write its name and arguments as JSON:\\n' -}}
  {{- '<tool_call>\\n{"name": NAME, "arguments": {"ARGUMENT": VALUE}}\\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- for message in rest -%}
  {%- if message['role'] == 'tool' -%}
    {{- '<|im_start|>user\\n<tool_response>\\n' + message['content'] + '\\n</tool_response><|im_end|>\\n' -}}
  {%- else -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}
    {%- for call in message['tool_calls'] or [] -%}
      {{- '\\n' if message['content'] or not loop.first else '' -}}
      {{- '<tool_call>\\n{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
      {{- (call.function.arguments if call.function.arguments is string else call.function.arguments | tojson) -}}
      {{- '}\\n</tool_call>' -}}
    {%- endfor -%}
    {{- '<|im_end|>\\n' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
