from agents import Agent, ModelSettings, Runner, SQLiteSession, set_default_openai_client, set_tracing_disabled
from common import MODEL, PLATFORM, QUESTION, SERVER, expect, step
from openai import AsyncOpenAI

set_default_openai_client(AsyncOpenAI(base_url=f"{SERVER}/v1", api_key="-"))
set_tracing_disabled(disabled=True)
agent = Agent(
    name="Guide", instructions="Be brief.", model=MODEL, model_settings=ModelSettings(max_tokens=256, temperature=0)
)

with step("Runner (responses)"):
    first = Runner.run_sync(agent, QUESTION)
    expect(first.final_output, "text")
with step("session"):
    session = SQLiteSession("1")
    Runner.run_sync(agent, QUESTION, session=session)
    expect(Runner.run_sync(agent, "And of Italy?", session=session).final_output, "text")
for name, url in (("previous_response_id", SERVER), ("previous_response_id, on a platform", PLATFORM)):
    set_default_openai_client(AsyncOpenAI(base_url=f"{url}/v1", api_key="-"))
    with step(name):
        first = Runner.run_sync(agent, QUESTION)
        second = Runner.run_sync(agent, "And of Italy?", previous_response_id=first.last_response_id)
        expect(second.final_output, "text")
