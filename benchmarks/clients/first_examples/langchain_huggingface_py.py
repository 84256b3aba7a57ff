from common import MODEL, QUESTION, SERVER, expect, step
from langchain_huggingface import ChatHuggingFace, HuggingFaceEndpoint

model = HuggingFaceEndpoint(endpoint_url=SERVER, max_new_tokens=24, temperature=0.1, huggingfacehub_api_token="-")
chat = ChatHuggingFace(llm=model, model_id=MODEL)

with step("HuggingFaceEndpoint: invoke"):
    expect(model.invoke("The capital of France is"), "text")
with step("HuggingFaceEndpoint: stream"):
    expect("".join(model.stream("The capital of France is")), "text")
with step("ChatHuggingFace: invoke"):
    expect(chat.invoke(QUESTION).content, "text")
with step("ChatHuggingFace: stream"):
    expect("".join(chunk.text for chunk in chat.stream(QUESTION)), "text")
