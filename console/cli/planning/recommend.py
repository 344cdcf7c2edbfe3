"""The commands of the recommender: `muster recommend`, `muster explain` and `muster forecast`. They propose nothing by
themselves: the command shown with a recommendation does, and acts only when a person agrees."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING

from console.cli.show import which_engine, write_json, write_lines
from console.processes.attach import connect
from console.text.terminal_text import printable
from console.views.advice.suggestions import explanation_lines, forecast_lines, recommendation_lines
from recommender.forecasts.queries import ForecastRequest

if TYPE_CHECKING:
    from console.client.protocol import Client
    from recommender.findings.queries import Recommendation

PATIENCE_S = 0.5
"""For a try on the twin that is under way, unless --wait says to see its end."""
LOOK_S = 0.1


def recommend(arguments: argparse.Namespace) -> None:
    """What stands out, and what might be done about it; or, with --reject, no more of one of them."""
    with closing(connect(arguments)) as client:
        if arguments.reject:
            rejected = client.reject_recommendation(arguments.reject, arguments.reason)
            if arguments.json:
                write_json(rejected)
            else:
                write_lines([rejected.suggestion.id])
                print(printable(rejected.note), file=sys.stderr)
            return
        view = client.recommendations()
    if arguments.json:
        write_json(view)
        return
    write_lines(recommendation_lines(view, which_engine(arguments), every=arguments.all))


def explain(arguments: argparse.Namespace) -> None:
    """One recommendation with its evidence, what else could be done, and before and after on the twin."""
    with closing(connect(arguments)) as client:
        found = tried(client, arguments.id, None if arguments.wait else PATIENCE_S)
    write_json(found) if arguments.json else write_lines(explanation_lines(found, which_engine(arguments)))
    if found.simulated.state in ("waiting", "running"):
        print("it is being tried on the twin: ask again in a moment, or with --wait", file=sys.stderr)


def tried(client: Client, rec_id: str, patience_s: float | None) -> Recommendation:
    """The recommendation once it has been tried, or when patience ends; None: never."""
    until = None if patience_s is None else time.monotonic() + patience_s
    found = client.recommendation(rec_id)
    while found.simulated.state in ("waiting", "running") and (until is None or time.monotonic() < until):
        time.sleep(LOOK_S)
        found = client.recommendation(rec_id)
    return found


def forecast(arguments: argparse.Namespace) -> None:
    """Demand of the hours ahead, hour by hour, with the members of the blend and how past forecasts have held."""
    wanted = ForecastRequest(subject=arguments.subject, metric=arguments.metric, hours=arguments.hours)
    with closing(connect(arguments)) as client:
        view = client.forecast(wanted)
    write_json(view) if arguments.json else write_lines(forecast_lines(view))
