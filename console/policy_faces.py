"""The approval policy, and who asks, over HTTP. Who may change the policy is the policy's to say."""

from __future__ import annotations

import msgspec

from console.operations import Operation
from runbooks.policy_shown import Caller, Candidate, PolicyChange, PolicyCheck, PolicyView, PolicyVote


class CheckBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


POLICY = (
    Operation("GET", "/v1/whoami", "As whom the engine knows whoever asks", lambda asked: asked.client.whoami(),
              gives=Caller),
    Operation("GET", "/v1/policy", "The approval policy in force, and those that wait for votes",
              lambda asked: asked.client.policy(), gives=PolicyView),
    Operation("POST", "/v1/policy/check", "What putting a policy in force would change. Nothing is kept",
              lambda asked: asked.client.check_policy(asked.body.text), takes=CheckBody, gives=PolicyCheck),
    Operation("POST", "/v1/policy/propose", "Put another policy to the vote",
              lambda asked: asked.client.propose_policy(asked.body), takes=PolicyChange, gives=Candidate,
              changes=True),
    Operation("POST", "/v1/policy/vote", "Vote on another policy; the last yes that is needed puts it in force",
              lambda asked: asked.client.vote_policy(asked.body), takes=PolicyVote, gives=Candidate, changes=True),
)  # fmt: skip
