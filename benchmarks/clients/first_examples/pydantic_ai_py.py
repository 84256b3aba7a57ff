from common import MODEL, QUESTION, SERVER, expect, step
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=f"{SERVER}/v1", api_key="-")
settings = {"max_tokens": 96}


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)


with step("chat"):
    agent = Agent(OpenAIChatModel(MODEL, provider=provider), model_settings=settings)
    expect(agent.run_sync(QUESTION).output, "text")
with step("native output"):
    typed = Agent(OpenAIChatModel(MODEL, provider=provider), output_type=NativeOutput(City), model_settings=settings)
    expect(isinstance(typed.run_sync(QUESTION).output, City), "a City")
with step("responses"):
    agent = Agent(OpenAIResponsesModel(MODEL, provider=provider), model_settings=settings)
    expect(agent.run_sync(QUESTION).output, "text")
