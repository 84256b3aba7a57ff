from common import MODEL, QUESTION, SERVER, expect, step
from langchain_anthropic import ChatAnthropic

chat = ChatAnthropic(model=MODEL, base_url=SERVER, api_key="-", max_tokens=48)

with step("invoke"):
    expect(chat.invoke(QUESTION).content, "text")
with step("stream"):
    expect("".join(chunk.text for chunk in chat.stream(QUESTION)), "text")
