"""A classifier of scikit-learn, as SageMaker's container serves it: unchanged there and here."""

import json
import os

import joblib


def model_fn(model_dir):
    return joblib.load(os.path.join(model_dir, "model.joblib"))  # noqa: PTH118 - as public programs write it


def predict_fn(data, model):
    """Return label and probability of the likeliest class of each row."""
    probabilities = model.predict_proba(data)
    best = probabilities.argmax(axis=1)
    return [
        {"label": model.classes_[index], "probability": row[index]}
        for index, row in zip(best, probabilities, strict=True)
    ]


def output_fn(prediction, accept):
    if accept == "text/csv":
        return "".join(f"{item['label']},{item['probability']:.4f}\n" for item in prediction), accept
    return json.dumps(prediction), "application/json"
