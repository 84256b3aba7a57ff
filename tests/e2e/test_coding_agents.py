"""Packages of coding agents against a server with a scripted model: parallel calls, reasoning, and an interrupt."""

import itertools
import os

import pytest
from benchmarks.clients.clients import CLIENTS
from benchmarks.clients.environments import NotInstalled, command_of, environments_folder
from benchmarks.clients.run import run_client
from benchmarks.clients.scripted import THOUGHT, scripted_server, scripted_variables

pytestmark = pytest.mark.timeout(900)  # the first run installs the packages, which have a gigabyte

INTERRUPTED = ("Claude Code", "Codex")
"""The others take 4 s of CPU time to start, and `scripts/clients` interrupts them."""
NUM_REQUESTS = 3
"""Both files are read at once, their texts are written, and the answer says so."""


@pytest.fixture(scope="module")
def scripted():
    with scripted_server() as server:
        yield server


@pytest.fixture
def agent(request):
    """The agent of this name, installed."""
    client = next(client for client in CLIENTS if client.name == request.param)
    try:
        command_of(client, environments_folder())
    except NotInstalled as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    return client


@pytest.mark.parametrize("agent", [*INTERRUPTED, "OpenCode", "Cline"], indirect=True)
def test_an_agent_does_its_task_and_the_server_stops_with_it(agent, scripted):
    backend, is_interrupted = scripted.backend, agent.name in INTERRUPTED
    num_before = len(backend.requests)
    variables = scripted_variables(scripted) | ({} if is_interrupted else {"CLIENT_UNINTERRUPTED": "1"})
    result = run_client(agent, environments_folder(), variables)
    assert (result["error"], [step["error"] for step in result["steps"]]) == (None, [None] * (1 + is_interrupted))

    requests = [request for request in backend.requests[num_before:] if request.prompt.tools]
    task = [request.prompt for request in requests[:NUM_REQUESTS]]
    for earlier, later in itertools.pairwise(task):  # what the prefix cache needs
        assert (later.tools, later.messages[: len(earlier.messages)]) == (earlier.tools, earlier.messages)
    turns = [message for message in task[-1].messages if message["role"] in ("assistant", "tool")]
    assert [turn["role"] for turn in turns] == ["assistant", "tool", "tool", "assistant", "tool"]
    assert turns[0]["reasoning"] == THOUGHT
    assert [len(turn["tool_calls"]) for turn in turns if turn["role"] == "assistant"] == [2, 1]
    assert [request.request_id for request in requests[NUM_REQUESTS:]] == backend.aborted[-1:] * is_interrupted
