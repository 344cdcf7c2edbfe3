"""The version of Muster, in the one place that packaging, shell and server read it from."""

VERSION = "0.1.0"
