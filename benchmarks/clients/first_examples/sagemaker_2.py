from common import MODEL, expect, step
from sagemaker.deserializers import JSONDeserializer
from sagemaker.predictor import Predictor
from sagemaker.serializers import JSONSerializer

predictor = Predictor(MODEL, serializer=JSONSerializer(), deserializer=JSONDeserializer())
body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 16}}

with step("predict"):
    expect(predictor.predict(body)[0]["generated_text"], "text")
with step("predict_stream"):
    expect(list(predictor.predict_stream({**body, "stream": True})), "parts")
