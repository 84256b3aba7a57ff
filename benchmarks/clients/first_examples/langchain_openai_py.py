from common import MODEL, QUESTION, SERVER, expect, step
from langchain_core.prompts import ChatPromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

chat = ChatOpenAI(model=MODEL, base_url=f"{SERVER}/v1", api_key="-", max_tokens=64)


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=20)
    country: str = Field(max_length=20)


with step("invoke"):
    expect(chat.invoke(QUESTION).content, "text")
with step("stream"):
    expect("".join(chunk.content for chunk in chat.stream(QUESTION)), "text")
with step("chain"):
    chain = ChatPromptTemplate.from_messages([("system", "Be brief."), ("user", "{question}")]) | chat
    expect(chain.invoke({"question": QUESTION}).content, "text")
with step("structured output"):
    expect(isinstance(chat.with_structured_output(City).invoke(QUESTION), City), "a City")
with step("responses"):
    responses = ChatOpenAI(model=MODEL, base_url=f"{SERVER}/v1", api_key="-", use_responses_api=True, max_tokens=64)
    expect(responses.invoke(QUESTION).content, "text")
