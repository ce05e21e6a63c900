"""A model behind an address: any server that speaks the OpenAI chat API."""
