"""Routes for vectors and scores beside OpenAI's: TEI's, and `/rerank` and `/score` of Cohere, Jina and vLLM."""

from starlette.routing import Route

from headrace.server.generate import GenerationRoute
from headrace.server.service import Service
from headrace.wire.dialect import Dialect
from headrace.wire.framing import field_names
from headrace.wire.rerank import Rerank, Score
from headrace.wire.tei.dialect import Tei, TeiRoute

_TEI_ROUTES: tuple[TeiRoute, ...] = ("embed", "embed_all", "predict", "similarity")


def pooling_routes(service: Service) -> list[Route]:
    """Return the routes; on `/rerank` the field `texts` means TEI's body."""

    def route(path: str, dialect: Dialect) -> Route:
        return Route(path, GenerationRoute(service, route=path, dialect=dialect), methods=["POST"])

    rerank = GenerationRoute(service, route="/rerank", dialect=Rerank(), choose=_rerank_dialect)
    return [
        *(route(f"/{name}", Tei(name)) for name in _TEI_ROUTES),
        Route("/rerank", rerank, methods=["POST"]),
        route("/v1/rerank", Rerank()),
        route("/v2/rerank", Rerank(shows_documents=False)),
        route("/score", Score()),
        route("/v1/score", Score()),
    ]


def _rerank_dialect(body: bytes) -> Dialect:
    return Tei("rerank") if "texts" in field_names(body) else Rerank()
