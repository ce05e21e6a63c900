"""The tools of a verifiers task, called in this process."""

import contextlib
from collections.abc import AsyncIterator, Mapping
from importlib import import_module
from typing import Any

from rolltrace.errors import InputError, UnknownNameError
from rolltrace.trace.convert import as_tool
from rolltrace.trace.message import ToolSpec

PLAY_ELSEWHERE = "play it with verifiers itself, and record it with rolltrace.bridges.verifiers.record"
"""What errors suggest for a taskset that cannot be played in this process."""


class TaskTools:
    """The tools of a task and of its taskset, which share the task's state."""

    def __init__(self, name: str, state: Any) -> None:
        self._name = name
        self._state = state
        self._servers: dict[str, tuple[Any, str]] = {}
        """By the name that the policy calls: the server of the tool, and its name there."""
        self.offered: list[Any] = []
        """The tools, as verifiers states them."""
        self.specs: tuple[ToolSpec, ...] = ()

    @contextlib.asynccontextmanager
    async def open(self, taskset: Any, task: Any) -> AsyncIterator[None]:
        """Set the tools up for the task; they are closed after the block."""
        async with contextlib.AsyncExitStack() as stack:
            for toolset in taskset.toolsets(taskset.config):
                await stack.enter_async_context(toolset._exit_stack)
                await self._add(toolset, None)
            for toolset in task.toolsets(task.config):
                await stack.enter_async_context(toolset._exit_stack)
                await self._add(toolset, task.data)
            self.specs = tuple(as_tool(tool, "tools", []) for tool in self.offered)
            yield

    async def _add(self, toolset: Any, data: Any) -> None:
        """Add the tools of a server; the data of the task are for servers of the task, not of the taskset."""
        config = toolset.config
        runtime = getattr(config, "runtime", None)
        if getattr(config, "url", None) or (runtime is not None and runtime.type != "subprocess"):
            raise InputError(
                f"{self._name} has tools that run in a container or on a server, which is not supported: "
                f"{PLAY_ELSEWHERE}."
            )

        async def shared_state() -> Any:
            return self._state

        async def no_push(_before: bytes) -> None:  # the tool has changed the state itself
            return

        # A tool server gets the state over HTTP; here it is the same object.
        toolset._pull_state, toolset._push_state = shared_state, no_push
        await toolset.setup()
        if data is not None:
            await toolset.setup_task(data)
        server = import_module("mcp.server.mcpserver").MCPServer(toolset.server_name or type(toolset).__name__)
        toolset.register(server)
        prefix = f"{toolset.server_name}_" if toolset.server_name else ""
        for tool in await server.list_tools():
            self._servers[f"{prefix}{tool.name}"] = (server, tool.name)
            self.offered.append(
                import_module("verifiers.v1").Tool(
                    name=f"{prefix}{tool.name}", description=tool.description or "", parameters=tool.input_schema
                )
            )

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str | list[Any]:
        """The result for the policy; that of a failed call is its error."""
        if name not in self._servers:
            return f"Error: {UnknownNameError.for_name('tool', name[:100], self._servers)}"
        server, own_name = self._servers[name]
        try:
            result = await server.call_tool(own_name, dict(arguments))
        except Exception as error:  # noqa: BLE001 - the policy gets the error
            return f"Error: {error}"
        to_chat = import_module("verifiers.v1.harnesses.utils.mcp").mcp_content_to_chat_content
        content: str | list[Any] = to_chat(result.content)
        return content
