"""Train a classifier of irises, and write the model's folder: `python train.py FOLDER`."""

import shutil
import sys
from pathlib import Path

import joblib
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

folder = Path(sys.argv[1])
irises = load_iris()
model = LogisticRegression(max_iter=1000).fit(irises.data, irises.target_names[irises.target])
folder.mkdir(parents=True, exist_ok=True)
joblib.dump(model, folder / "model.joblib")
shutil.copytree(Path(__file__).parent / "code", folder / "code", dirs_exist_ok=True)
