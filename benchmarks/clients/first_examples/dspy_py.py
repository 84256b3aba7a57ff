import dspy
from common import MODEL, QUESTION, SERVER, expect, step

model = dspy.LM(f"openai/{MODEL}", api_base=f"{SERVER}/v1", api_key="-", max_tokens=64, cache=False)

with step("LM"):
    expect(model(QUESTION), "text")
