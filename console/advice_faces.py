"""What the recommender and the twin say, over HTTP."""

from __future__ import annotations

import msgspec

from console.operations import WAIT, Asked, Number, Operation
from engine.outlook import Ask, RunStatus, ScoreReport
from recommender.forecasts import Forecast, ForecastRequest
from recommender.history import History, HistoryRequest, ImportReceipt, RunBatch, SampleBatch
from recommender.quotes import Quote, QuoteRequest
from recommender.recommendations import Recommendation, Recommendations
from recommender.sizes import SizingReport, SizingRequest


class RejectBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    reason: str = ""


SINCE = Number("after", -1, -1, 2**62, "Serial of what is known already; -1: nothing")


def _run(asked: Asked) -> RunStatus:
    return asked.client.run(asked.path["id"], asked.query["after"], asked.query["wait_s"])


ADVICE = (
    Operation("GET", "/v1/recommendations", "What is advised now, with evidence",
              lambda asked: asked.client.recommendations(), gives=Recommendations),
    Operation("GET", "/v1/recommendations/{id}", "One recommendation whole",
              lambda asked: asked.client.recommendation(asked.path["id"]), gives=Recommendation),
    Operation("POST", "/v1/recommendations/{id}/reject", "Say that it is not wanted, and why",
              lambda asked: asked.client.reject_recommendation(asked.path["id"], asked.body.reason),
              takes=RejectBody, gives=Recommendation, changes=True),
    Operation("POST", "/v1/forecast", "Demand ahead, with quantiles", lambda asked: asked.client.forecast(asked.body),
              takes=ForecastRequest, gives=Forecast, slow=True),
    Operation("POST", "/v1/quote", "When it would start and what it would cost",
              lambda asked: asked.client.quote(asked.body), takes=QuoteRequest, gives=Quote, slow=True),
    Operation("POST", "/v1/history", "Measurements and ended work", lambda asked: asked.client.history(asked.body),
              takes=HistoryRequest, gives=History, slow=True),
    Operation("POST", "/v1/sizing", "Requests against what was used", lambda asked: asked.client.sizing(asked.body),
              takes=SizingRequest, gives=SizingReport, slow=True),
    Operation("POST", "/v1/import/samples", "Bring measurements from elsewhere",
              lambda asked: asked.client.import_samples(asked.body), takes=SampleBatch, gives=ImportReceipt,
              changes=True, large=True, slow=True),
    Operation("POST", "/v1/import/runs", "Bring ended work from elsewhere",
              lambda asked: asked.client.import_runs(asked.body), takes=RunBatch, gives=ImportReceipt, changes=True,
              large=True, slow=True),
    Operation("GET", "/v1/runs", "Runs of the twin, newest first", lambda asked: asked.client.runs(),
              gives=tuple[RunStatus, ...]),
    Operation("POST", "/v1/runs", "Have the twin run ahead on a fork of the cell. Changes nothing",
              lambda asked: asked.client.ask(asked.body), takes=Ask, gives=RunStatus),
    Operation("GET", "/v1/runs/{id}", "A run of the twin as it stands, or as soon as there is more of it", _run,
              query=(SINCE, WAIT), gives=RunStatus, slow=True),
    Operation("DELETE", "/v1/runs/{id}", "Stop a run; what it has found stays",
              lambda asked: asked.client.cancel_run(asked.path["id"]), gives=RunStatus),
    Operation("GET", "/v1/scores", "How start estimates compare with what happened",
              lambda asked: asked.client.scores(), gives=ScoreReport, slow=True),
)  # fmt: skip
