"""Golden predictions of older XGBoost releases, whose files differ in details.

Usage, for each VERSION of OLD_VERSIONS (after make_golden.py):
    pip install --no-deps --target DIRECTORY/VERSION xgboost==VERSION
    python make_golden_old.py DIRECTORY VERSION
"""

import sys

OLD_VERSIONS = ["1.7.6", "2.1.4", "3.0.5"]

directory, version = sys.argv[1:]
assert version in OLD_VERSIONS
sys.path.insert(0, f"{directory}/{version}")

import numpy as np
import xgboost as xgb

import make_golden as golden

assert xgb.__version__ == version
prefix = f"xgb_v{version.replace('.', '')}"

rng, x = golden.data(11, categories={4: 40})
y = golden.signal(x) + (x[:, 4] % 7 == 3) * 3
holes = golden.punch(rng, x)
binary = (y > 0).astype(int)
classes = np.digitize(y, [-0.8, 0.6])

golden.xgb_case(f"{prefix}_logistic", {"objective": "binary:logistic"}, holes, binary)
golden.xgb_case(f"{prefix}_logistic_base", {"objective": "binary:logistic", "base_score": 0.2}, holes, binary)
golden.xgb_case(f"{prefix}_poisson", {"objective": "count:poisson", "base_score": 2.5}, holes, np.exp(y / 4))
golden.xgb_case(f"{prefix}_softprob", {"objective": "multi:softprob", "num_class": 3}, holes, classes)
golden.xgb_case(f"{prefix}_rank", {"objective": "rank:pairwise"}, holes, classes, group=[30] * 10)
dart = {"booster": "dart", "rate_drop": 0.4, "objective": "reg:squarederror"}
golden.xgb_case(f"{prefix}_dart", dart, holes, y, rounds=10)
linear = {"booster": "gblinear", "objective": "multi:softprob", "num_class": 3}
golden.xgb_case(f"{prefix}_linear", linear, holes, classes)
category = {"tree_method": "hist", "objective": "reg:squarederror", "max_cat_to_onehot": 1}
golden.xgb_case(f"{prefix}_category", category, holes, y, types=["q", "q", "q", "q", "c"])
if version != "1.7.6":
    vector = {"multi_strategy": "multi_output_tree", "tree_method": "hist", "objective": "reg:squarederror"}
    golden.xgb_case(f"{prefix}_vector_leaf", vector, holes, np.stack([y, -y], axis=1))
