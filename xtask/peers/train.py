"""Trains what MLServer serves: logistic regression on the iris data, as a scikit-learn pipeline.

    python train.py FILE.joblib
"""

import sys

import joblib
import numpy as np
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

features, species = load_iris(return_X_y=True)
model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
model.fit(features.astype(np.float32), species)
joblib.dump(model, sys.argv[1])
