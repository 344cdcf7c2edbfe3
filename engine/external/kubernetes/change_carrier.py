"""Carriage of changes to Kubernetes, step by step.

Each step is looked at, done unless it is done already, and read back. What the API server has answered is in etcd: it
does not forget. After an answer that did not come the object is read: the token of the intent, in its annotations, says
whose change is there. Each request names the UID and, where a change in between would matter, the version of the object
that was read, so that one that arrives late changes nothing that was changed since; and the API server gives up a
request sooner than an intent is given up here.

A submission waits for as long as the cluster does not take it. A drain has its time anew with each pod that leaves. A
change that is carried by a file waits for whoever applies it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from engine.external.intent_carrier import (
    AGAIN_S,
    GIVE_UP_MS,
    UNDECIDED,
    Abilities,
    CarriedIntent,
    CarriedStep,
    CarrierThreads,
    EngineLedger,
    IntentCarrier,
    IntentJournal,
    Recorded,
    few,
)
from engine.external.kubernetes.acting import PatchFiles, lacks_of, rehearse, ways_of
from engine.external.kubernetes.change_requests import (
    ChangeApi,
    ChangeRequest,
    KubernetesChange,
    KubernetesReading,
    look,
    steps_of,
)
from engine.external.kubernetes_api.errors import (
    EvictionBlocked,
    KubernetesDenied,
    KubernetesGone,
    KubernetesRefused,
    KubernetesStale,
    KubernetesUnavailable,
)
from engine.external.kubernetes_api.transport import KubernetesTransport
from engine.external.observed_changes import new_token
from engine.loop import EngineLoop
from engine.model import commands as cmd
from engine.model.errors import MusterError, RefusedError, SpecError
from engine.model.external_cells import FarLook
from engine.state.external_cell import Intent, Phase, wanted

AT_ONCE = 24
"""Intents that are journalled as under way together."""
FILE_AGAIN_S = 5.0
"""Between looks at what a file is to bring about."""
FILE_GIVE_UP_MS = 7 * 24 * 3_600_000
MAX_LOOKED_AT = 20
"""Things of one intent that a person is shown."""


class KubernetesStep(CarriedStep, kw_only=True):
    step: KubernetesChange
    ours: bool = False
    requests: tuple[ChangeRequest, ...] = ()

    def see(self, seen: KubernetesReading) -> None:
        self.standing, self.text, self.ours = seen.standing, seen.text, self.ours or seen.ours
        self.requests = seen.requests if seen.standing == "to do" else ()

    @property
    def is_left(self) -> bool:
        return not self.refused and self.standing in UNDECIDED


class KubernetesIntent(CarriedIntent, kw_only=True):
    token: str
    parts: list[KubernetesStep]
    perhaps: bool
    """It may have been asked for by an earlier process."""

    @property
    def tried(self) -> bool:
        return self.perhaps or self.phase == Phase.ACCEPTED or any(part.tried or part.ours for part in self.parts)


class KubernetesCarrier(IntentCarrier[KubernetesIntent]):
    """All that is wanted of one cluster, submissions too. `files`: where changes go instead of to the API server."""

    away = (KubernetesUnavailable,)

    def __init__(
        self,
        api: ChangeApi,
        journal: IntentJournal,
        *,
        files: PatchFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        super().__init__(journal, clock=clock, wall_ms=wall_ms, may_act=may_act)
        self._api = api
        self._files = files

    def _hold(self, intent: Intent, command: cmd.AnyCommand) -> KubernetesIntent:
        return KubernetesIntent(
            number=intent.number, command=command, at_ms=intent.at_ms, phase=Phase(intent.phase), token=intent.token,
            parts=[KubernetesStep(step=step) for step in steps_of(command)], perhaps=intent.phase != Phase.OPEN,
        )  # fmt: skip

    def _carry_all(self) -> str:
        self._begin()
        return super()._carry_all()

    def _begin(self) -> None:
        """Journal as under way, together, what is carried next."""
        blocked: set[str] = set()
        begun = 0
        for held in list(self._held.values()):
            if held.phase == Phase.OPEN and begun < AT_ONCE and blocked.isdisjoint(held.subjects):
                self._note(held, Phase.SENT)
                begun += 1
            if held.phase in (Phase.OPEN, Phase.SENT):
                blocked.update(held.subjects)
        self._say()

    # -- one intent ---------------------------------------------------------------------------------------------------

    def _carry(self, held: KubernetesIntent) -> None:
        if held.phase == Phase.OPEN:
            return
        try:
            for part in held.parts:
                if part.is_left:
                    self._step(held, part)
        except KubernetesUnavailable as error:
            held.wake_s = self._clock() + max(AGAIN_S, error.wait_s)
            for part in held.parts:
                part.text = error.problem if part.is_left else part.text
            if not error.answered:
                raise
            return
        if not any(part.is_left for part in held.parts):
            self._conclude(held)
        elif self._files is not None:
            self._write(held, self._files)
        else:
            held.wake_s = self._clock() + AGAIN_S

    def _step(self, held: KubernetesIntent, part: KubernetesStep) -> None:
        try:
            part.see(look(self._api, part.step, held.token))
            if part.requests and self._files is None:
                self._send(held, part)
                part.see(look(self._api, part.step, held.token))
        except KubernetesStale as error:
            part.text = error.problem  # it is read again
        except EvictionBlocked as error:
            part.text = f"waits: {error.problem}"
        except KubernetesDenied as error:
            if error.status == 401:  # somebody renews the login
                raise KubernetesUnavailable(error.problem, error.remedy, answered=True) from None
            part.refused = error.problem
        except (RefusedError, SpecError) as error:
            part.refused = error.problem

    def _send(self, held: KubernetesIntent, part: KubernetesStep) -> None:
        if part.step.do == "empty":
            self._evict(held, part)
            return
        for request in part.requests:
            try:
                self._send_one(part, request)
            except KubernetesGone:
                if part.step.do != "cancel":
                    raise

    def _evict(self, held: KubernetesIntent, part: KubernetesStep) -> None:
        """Evict one gang, the first that no budget keeps. Raises EvictionBlocked where all are kept."""
        going, kept = "", []
        for request in part.requests:
            if going not in ("", request.gang):
                return
            try:
                self._send_one(part, request)
            except KubernetesGone:
                continue
            except EvictionBlocked as error:
                kept.append(error)
                continue
            going, held.at_ms = request.gang, self._wall_ms()
        if kept and not going:
            raise kept[0]

    def _send_one(self, part: KubernetesStep, request: ChangeRequest) -> None:
        if not self._may_act():
            raise KubernetesUnavailable("another engine has taken over")
        before, part.tried = part.tried, True
        try:
            self._api.send(request)
        except KubernetesUnavailable as error:
            part.tried = before or not error.undone
            raise

    def _conclude(self, held: KubernetesIntent) -> None:
        """Every step is done, refused, or about what has gone."""
        refused = [part.refused for part in held.parts if part.refused]
        texts = few([part.text for part in held.parts if not part.refused])
        if refused:
            done = sum(part.standing == "done" for part in held.parts if not part.refused)
            self._note(held, Phase.REFUSED, few(refused) + (f"; {done} others are done" if done else ""))
        elif held.tried:
            self._note(held, Phase.DONE, f"read back: {texts}")
        else:
            self._note(held, Phase.NEEDLESS, texts)

    def _write(self, held: KubernetesIntent, files: PatchFiles) -> None:
        """Once, whole: as it was when it was approved."""
        held.wake_s = self._clock() + FILE_AGAIN_S
        if held.phase == Phase.SENT:
            try:
                path = files.write(held.number, held.token, [each for part in held.parts for each in part.requests])
            except MusterError as error:
                self._note(held, Phase.REFUSED, error.problem)
                return
            self._note(held, Phase.ACCEPTED, f"it is in {path}, and waits for whoever applies it")

    def _give_up(self, held: KubernetesIntent) -> None:
        by_file = held.phase == Phase.ACCEPTED
        limit_ms = FILE_GIVE_UP_MS if by_file else GIVE_UP_MS
        if isinstance(held.command, cmd.Submit) and not by_file:
            return  # what was taken in is submitted, whenever that can be: its name is the same each time
        if self._wall_ms() - held.at_ms < limit_ms:
            return
        left = few([part.text or part.step.target for part in held.parts if part.is_left])
        if not held.tried:
            self._note(held, Phase.EXPIRED, f"not carried within {limit_ms // 1000} s: {left or self.trouble}")
        else:
            self._note(held, Phase.IN_DOUBT, f"not confirmed within {limit_ms // 1000} s: {left}")


class KubernetesDriver:
    """The carrier of an engine, on a thread of its own. `line` is closed by its owner."""

    def __init__(
        self,
        line: KubernetesTransport,
        loop: EngineLoop,
        *,
        files: PatchFiles | None = None,
        recorded: Recorded = lambda engine, changes: None,
    ) -> None:
        self._line = line
        self._by_file = files is not None
        self.api = ChangeApi(line)

        def may_act() -> bool:
            lease = loop.engine.lease
            return lease is None or lease.is_held

        self.carrier = KubernetesCarrier(
            self.api, EngineLedger(loop, recorded), files=files, wall_ms=lambda: loop.engine.now_ms, may_act=may_act
        )
        self._threads = CarrierThreads(loop, "kubernetes", {"acts": self.carrier.turn})
        self._threads.learn(self._abilities)

    def start(self) -> None:
        self._threads.start()

    def stop(self) -> None:
        self._threads.stop()

    @property
    def trouble(self) -> str:
        """Why nothing can be carried at present; empty when all is well."""
        return self._threads.trouble or self.carrier.trouble

    def rehearse(self, command: cmd.AnyCommand) -> tuple[str, ...]:
        """What the API server says of a command that nobody has voted on yet. Raises RefusedError, UnreachableError."""
        return rehearse(self.api, command, new_token(0))

    def evidence(self, intent: Intent, now_ms: int) -> FarLook:
        return look_at(self.api, intent, now_ms)

    def _abilities(self) -> Abilities:
        by: Any = "patch" if self._by_file else "api"
        lacks = lacks_of(self._line, by)
        return Abilities(lacks, ways_of(lacks, by), f"Kubernetes at {self._line.reach.cluster.address}")


def look_at(api: ChangeApi, intent: Intent, now_ms: int) -> FarLook:
    """What the cluster shows of an intent, for a person who has to settle it. Changes nothing."""
    parts = [KubernetesStep(step=step) for step in steps_of(wanted(intent))]
    try:
        for part in parts[:MAX_LOOKED_AT]:
            part.see(look(api, part.step, intent.token))
    except (KubernetesUnavailable, KubernetesRefused, SpecError, RefusedError) as error:
        return FarLook(at_ms=now_ms, error=str(error))
    standings = {part.standing for part in parts[:MAX_LOOKED_AT]}
    more = (f"and {len(parts) - MAX_LOOKED_AT} more, which were not looked at",) if len(parts) > MAX_LOOKED_AT else ()
    shows = "" if more or len(standings) != 1 else {"done": "done", "to do": "undone"}.get(standings.pop(), "")
    return FarLook(at_ms=now_ms, lines=(*(part.text for part in parts[:MAX_LOOKED_AT]), *more), shows=shows)
