"""Serve models with Gantry from a notebook or a script.

>>> client = gantry.serve(model, X_train, name="churn")  # doctest: +SKIP
>>> client.predict(X_test)  # doctest: +SKIP
"""

from gantry._client import Client, Tensor
from gantry._error import GantryError
from gantry._serve import Server, connect, serve, shutdown

__all__ = ["Client", "GantryError", "Server", "Tensor", "connect", "serve", "shutdown"]
__version__ = "0.1.0"
