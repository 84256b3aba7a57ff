from common import MODEL, QUESTION, SERVER, expect, step
from strands import Agent
from strands.models.openai import OpenAIModel

with step("Agent(OpenAIModel)"):
    model = OpenAIModel(
        client_args={"base_url": f"{SERVER}/v1", "api_key": "-"},
        model_id=MODEL,
        params={"max_tokens": 512, "temperature": 0},  # an answer that ends with `length` is an error of Strands
    )
    result = Agent(model=model, callback_handler=None)(QUESTION)
    expect(result.message["content"][0]["text"], "text")
