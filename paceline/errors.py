"""Every error that Paceline raises on purpose, split by who can act on it.

    PacelineError
    ├── UserError            the user can act: one sentence, exit code 2, HTTP 400
    │   ├── ConfigError      a value or key of the configuration
    │   ├── ModelError       a model folder, alias, tokenizer or vocabulary
    │   ├── InputError       a prompt, an input line, a request parameter
    │   ├── EnvironmentError_  what is installed, or what this machine lacks
    │   └── RefusedError     the verifier will not work with this drafter
    ├── DraftingError        nobody has to act: the request goes on undrafted
    │   ├── ProtocolError    a peer's message that is no message of ours
    │   └── PeerGoneError    the peer is not connected (any more)
    ├── DifferenceError      a replay answers other than its recording
    ├── RequestFailedError   this request failed, for no fault of the user's; others go on
    └── EngineDeadError      give up: the target's engine is gone

A message says what is wrong, with which value, and what to do, in one sentence: it is shown to the
user as it stands. A bug of our own is an ``assert``, never one of these.
"""

from __future__ import annotations


class PacelineError(Exception):
    """Base of all errors that are raised on purpose."""


class UserError(PacelineError):
    """The user can repair it; shown as one sentence with exit code 2."""


class ConfigError(UserError):
    """A configuration key or value is wrong."""


class ModelError(UserError):
    """A model folder, alias, tokenizer or vocabulary does not fit."""


class InputError(UserError):
    """A prompt, an input line or a request parameter is wrong."""


class EnvironmentError_(UserError):
    """Something that is installed, or that this machine has, does not fit."""


class RefusedError(UserError):
    """The verifier answered HELLO with REFUSE; the message is its reason."""


class DraftingError(PacelineError):
    """Drafting failed for a request; the request itself goes on undrafted."""


class ProtocolError(DraftingError):
    """Bytes from a peer that do not decode to a valid message."""


class PeerGoneError(DraftingError):
    """The peer that a message is for is not connected."""


class DifferenceError(PacelineError):
    """A replayed recording is answered other than it was."""


class RequestFailedError(PacelineError):
    """One request failed for a reason that nobody foresaw; the engine and other requests go on."""


class EngineDeadError(PacelineError):
    """The target's engine has died; whoever waits for it has to give up."""
