"""Where policies, their votes, freezes by hand and the nonces of signatures are kept, in the journal's database."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, UniqueConstraint

METADATA = MetaData()
CELL = Table(
    "cell_identity", METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False), Column("id", String, nullable=False),
)  # fmt: skip
VERSION = Table(
    "policy_version", METADATA,
    Column("seq", Integer, primary_key=True, autoincrement=True),
    Column("digest", String, nullable=False, index=True), Column("version", Integer, nullable=False),
    Column("body", LargeBinary, nullable=False), Column("text", LargeBinary, nullable=False),
    Column("at_ms", BigInteger, nullable=False), Column("by", String, nullable=False),
)  # fmt: skip
"""What came into force, in that order; the last one is. `body` is canonical, `text` the file as it was handed in."""
NONCE = Table(
    "signature_nonce", METADATA,
    Column("nonce", String, primary_key=True), Column("at_ms", BigInteger, nullable=False),
)  # fmt: skip
"""Of every signature that was accepted. Never pruned: a clock that is set back revives nothing."""
BOUND = Table(
    "policy_key", METADATA,
    Column("key", String, primary_key=True), Column("subject", String, nullable=False),
)  # fmt: skip
"""Whose a key is, by its fingerprint: for good."""
CANDIDATE = Table(
    "policy_candidate", METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("digest", String, nullable=False), Column("version", Integer, nullable=False),
    Column("based_on", String, nullable=False), Column("body", LargeBinary, nullable=False),
    Column("text", LargeBinary, nullable=False), Column("state", String, nullable=False, index=True),
    Column("author", LargeBinary, nullable=False), Column("at_ms", BigInteger, nullable=False),
)  # fmt: skip
CHANGE_VOTE = Table(
    "policy_vote", METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("number", Integer, nullable=False), Column("subject", String, nullable=False),
    Column("vote", LargeBinary, nullable=False), UniqueConstraint("number", "subject"),
)  # fmt: skip
FREEZE = Table(
    "freeze_by_hand", METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("name", String, nullable=False), Column("body", LargeBinary, nullable=False),
    Column("by", String, nullable=False), Column("at_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger, nullable=False, default=0), Column("ended_by", String, nullable=False, default=""),
)  # fmt: skip
