from common import MODEL, QUESTION, SERVER, expect, step
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike

llm = OpenAILike(model=MODEL, api_base=f"{SERVER}/v1", api_key="-", is_chat_model=True, max_tokens=32)

with step("complete"):
    expect(llm.complete(QUESTION).text, "text")
with step("chat"):
    expect(llm.chat([ChatMessage(role="user", content=QUESTION)]).message.content, "text")
with step("stream_chat"):
    expect("".join(part.delta or "" for part in llm.stream_chat([ChatMessage(role="user", content=QUESTION)])), "text")
