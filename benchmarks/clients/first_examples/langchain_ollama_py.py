from common import MODEL, QUESTION, SERVER, expect, step
from langchain_ollama import ChatOllama, OllamaLLM

chat = ChatOllama(model=MODEL, base_url=SERVER, num_predict=48, validate_model_on_init=True)

with step("invoke"):
    expect(chat.invoke(QUESTION).content, "text")
with step("stream"):
    expect("".join(chunk.content for chunk in chat.stream(QUESTION)), "text")
with step("generate"):
    expect(OllamaLLM(model=MODEL, base_url=SERVER, num_predict=32).invoke(QUESTION), "text")
