"""A forecaster behind HTTP: an ASGI application, and a server for it that answers every request before it stops.

``app_of`` returns the application, for a server of your own; ``sdebnn serve`` runs it with uvicorn.
"""

from sdebnn.serve.app import app_of
from sdebnn.serve.limits import Limits
from sdebnn.serve.server import answer_requests, bound_socket, url_of

__all__ = ["Limits", "answer_requests", "app_of", "bound_socket", "url_of"]
