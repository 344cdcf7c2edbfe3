"""Demand of the hours ahead: a bar for every hour, what it rests on, and how such forecasts have held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from console.advice_text import bars, forecast_head, forecast_skill
from console.details import Section, text_line
from console.screens.pane import Connect, DetailPane
from recommender.forecasts import Forecast, ForecastRequest

if TYPE_CHECKING:
    from console.client import Client


class ForecastPane(DetailPane[Forecast]):
    NAME = "forecast"

    def __init__(self, connect: Connect, subject: str) -> None:
        super().__init__(connect)
        self._subject = subject

    @property
    def crumb(self) -> str:
        return f"forecast {self._subject}".strip()

    @property
    def note(self) -> str:
        return ":forecast queue:NAME for another"

    def ask(self, client: Client) -> Forecast:
        return client.forecast(ForecastRequest(subject=self._subject))

    def columns(self, detail: Forecast, width: int) -> tuple[list[Section], list[Section]]:
        hours = Section("Hours ahead", tuple(text_line(line) for line in bars(detail, width)), detail.metric)
        rests = Section("Rests on", tuple(text_line(line) for line in forecast_head(detail, width)), detail.basis)
        held = Section("How they have held", tuple(text_line(line) for line in forecast_skill(detail)))
        return [hours], [rests, held]
