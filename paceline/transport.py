"""ZeroMQ sockets, in one place: a bound ROUTER for a verifier, a dialling DEALER for a drafter.

Neither class is thread-safe: each belongs to the one thread that uses it, and is closed with
``with``. Queues are bounded; a message to a peer that does not keep up is refused by ``send`` and
never blocks. On TCP every link is encrypted and authenticated with CURVE (RFC 26/ZeroMQ): the
verifier knows the drafters' public key, the drafters know the verifier's.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import msgspec
import zmq
import zmq.auth.thread

from paceline.codec import decode, encode
from paceline.config import Config
from paceline.errors import ConfigError, EnvironmentError_, PeerGoneError, ProtocolError
from paceline.message_trace import trace_message
from paceline.messages import Message
from paceline.trace import DISABLED, Tracer

MAX_MESSAGE_BYTES = 16 << 20
"""A longer frame closes its connection before it is read into memory. The longest is an Open: five
bytes for each of up to ``MAX_SEQUENCE_TOKENS`` tokens."""

MAX_ROWS_BYTES = 256 << 20
"""Of one message of rows: a prefill chunk of 8,192 tokens of an 8B target has 200 MB."""

MAX_DRAFTER_MESSAGE_BYTES = 4 << 20
"""The same for what drafters send."""

_KEEPALIVE_SECONDS = 2
_KEEPALIVE_PROBES = 3
"""TCP's keep-alive: without it a connection whose other end vanished stays open for hours. Not
ZeroMQ's own heartbeat (HEARTBEAT_IVL): libzmq 4.3.5 aborts the process when its timer fires for a
peer that went while the queue of its messages was full (zeromq/libzmq#4767 is one way there)."""

_HOST_NAME = re.compile(r"[A-Za-z][A-Za-z0-9.-]*")


class TransportConfig(Config, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How verifier and drafters reach each other."""

    control: str = "auto"
    """Address that the verifier binds: ``auto`` (a socket file of this run, one node),
    ``ipc:///path/of/a/socket`` or ``tcp://ADDRESS:PORT`` with the address of one interface."""
    high_water_mark: int = 1024
    """Messages queued per peer and direction before the newest is refused."""
    heartbeat_ms: int = 1000
    """How often a drafter says that it is alive."""
    heartbeat_timeout_ms: int = 10_000
    """Silence after which the other side counts as gone. A drafter is silent while it drafts one
    batch, so this must be longer than that."""

    def __post_init__(self) -> None:
        if self.control != "auto":
            check_address(self.control)
        if not 1 <= self.high_water_mark <= 1_000_000:
            raise ValueError(
                f"high_water_mark is {self.high_water_mark}, it lies between 1 and 1000000"
            )
        if not 0 < self.heartbeat_timeout_ms <= 3_600_000:
            raise ValueError(
                f"heartbeat_timeout_ms is {self.heartbeat_timeout_ms}, it lies between 1 and "
                "3600000 (an hour)"
            )
        if not 0 < self.heartbeat_ms < self.heartbeat_timeout_ms:
            raise ValueError(
                f"heartbeat_ms is {self.heartbeat_ms}, it must lie between 0 and "
                f"heartbeat_timeout_ms ({self.heartbeat_timeout_ms})"
            )


class CurveKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one run, each 40 characters of Z85. Secrets: never logged, never an argument."""

    server_public: str
    server_secret: str
    client_public: str
    client_secret: str

    def __repr__(self) -> str:
        return "CurveKeys(…)"

    @classmethod
    def generate(cls) -> CurveKeys:
        """Returns new random keys."""
        if not zmq.has("curve"):
            raise EnvironmentError_(
                "the installed libzmq has no CURVE encryption; install the pyzmq wheel, or use ipc"
            )
        server = [key.decode() for key in zmq.curve_keypair()]
        client = [key.decode() for key in zmq.curve_keypair()]
        return cls(
            server_public=server[0],
            server_secret=server[1],
            client_public=client[0],
            client_secret=client[1],
        )

    def save(self, path: Path) -> None:
        """Writes the keys to ``path`` for a process of the same user on this node."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(self))

    @classmethod
    def read(cls, path: Path) -> CurveKeys:
        """Reads what ``save`` wrote; refuses a file that others can read."""
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise ConfigError(f"the key file {path} can be read by others; chmod it to 600")
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.DecodeError) as error:
            raise ConfigError(f"the key file {path} cannot be read: {error}") from error


def check_address(address: str) -> None:
    """Raises ``ValueError`` unless ``address`` is one that Paceline binds or dials."""
    scheme, separator, rest = address.partition("://")
    if scheme == "ipc" and rest.startswith("/"):
        # The kernel's limit is 108 bytes with the closing zero (unix(7)).
        if len(os.fsencode(rest)) > 107:
            raise ValueError(f"control is {address}: a socket's path has at most 107 bytes")
        return
    host, colon, port = rest.rpartition(":")
    is_number = port.isascii() and port.isdecimal()
    if scheme != "tcp" or not separator or not colon or not is_number:
        raise ValueError(
            f"control is {address}: write auto, ipc:///path/of/a/socket or tcp://ADDRESS:PORT"
        )
    if not _names_one_interface(host):
        raise ValueError(f"control is {address}: name the address of one interface, no wildcard")
    if not 1 <= int(port) <= 65535:
        raise ValueError(f"control is {address}: a port lies between 1 and 65535")


def _names_one_interface(host: str) -> bool:
    try:
        return not ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_unspecified
    except ValueError:
        # The socket library reads "0" and "0x0" as addresses, too; a name starts with a letter.
        return _HOST_NAME.fullmatch(host) is not None


def _is_served(path: str) -> bool:
    """Whether a process listens on the socket file: binding it again would take it away."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True


Tensor: TypeAlias = bytes | bytearray | memoryview
"""A tensor's bytes."""


class _Endpoint:
    """What both ends share: a context of their own, a socket, bounded queues."""

    def __init__(
        self, kind: int, address: str, high_water_mark: int, max_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self.address = address
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(kind)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, high_water_mark)
        self._socket.setsockopt(zmq.RCVHWM, high_water_mark)
        self._socket.setsockopt(zmq.MAXMSGSIZE, max_bytes)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_SECONDS)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_SECONDS)
        self._socket.setsockopt(zmq.TCP_KEEPALIVE_CNT, _KEEPALIVE_PROBES)
        # The same for what was sent and is not acknowledged.
        self._socket.setsockopt(zmq.TCP_MAXRT, 1000 * _KEEPALIVE_SECONDS * (1 + _KEEPALIVE_PROBES))
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)

    def watch(self, descriptor: int) -> None:
        """Lets ``poll`` return when the file descriptor becomes readable, too."""
        self._poller.register(descriptor, zmq.POLLIN)

    def poll(self, timeout_ms: float) -> bool:
        """Waits for a message or a watched descriptor; returns whether a message is there."""
        return any(source is self._socket for source, _ in self._poller.poll(math.ceil(timeout_ms)))

    def register(self, poller: zmq.Poller) -> None:
        """Lets ``poller`` wake up for a message of this endpoint."""
        poller.register(self._socket, zmq.POLLIN)

    def _receive_frames(self) -> list[bytes] | None:
        try:
            return self._socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None

    def close(self) -> None:
        """Drops what is still queued and frees the socket; may be called twice."""
        self._socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Router(_Endpoint):
    """The verifier's end: bound to one address, speaks with many drafters."""

    def __init__(
        self,
        address: str,
        high_water_mark: int,
        keys: CurveKeys | None,
        tracer: Tracer = DISABLED,
    ) -> None:
        if address.startswith("ipc://") and _is_served(address.removeprefix("ipc://")):
            raise ConfigError(
                f"transport.control is {address}, which another process serves; choose another path"
            )
        super().__init__(zmq.ROUTER, address, high_water_mark, MAX_DRAFTER_MESSAGE_BYTES)
        self._tracer = tracer
        # Without it a message to a peer that has gone, or whose queue is full, vanishes silently.
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        # A drafter that dials again while its old connection still looks alive takes it over.
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        self._authenticator: zmq.auth.thread.ThreadAuthenticator | None = None
        if keys is not None:
            self._authenticate(keys)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"transport.control is {address}, which cannot be bound "
                f"({os.strerror(error.errno or 0).lower()}); choose another address or port, or "
                "stop the process that holds it"
            ) from error

    def _authenticate(self, keys: CurveKeys) -> None:
        class OneKey:
            def callback(self, domain: str, key: bytes) -> bool:
                return key == keys.client_public.encode()

        self._authenticator = zmq.auth.thread.ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback(domain="*", credentials_provider=OneKey())
        self._socket.curve_server = True
        self._socket.curve_publickey = keys.server_public.encode()
        self._socket.curve_secretkey = keys.server_secret.encode()

    def close(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        super().close()

    def send(self, peer: bytes, message: Message, tensors: Sequence[Tensor] = ()) -> bool:
        """Queues ``message`` for ``peer``; returns False if the peer does not keep up.

        Args:
            tensors: A frame for each tensor of Rows. They are not copied, and must stay as they
                are until they have gone out, which nobody tells: hand over what is not written to.

        Raises:
            PeerGoneError: the peer is not connected.
        """
        started = time.monotonic()
        try:
            frames = [peer, *encode(message), *tensors]
            self._socket.send_multipart(frames, zmq.NOBLOCK, copy=not tensors)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                raise PeerGoneError("the peer is not connected") from error
            raise
        trace_message(self._tracer, "send", peer, message, started)
        return True

    def receive(self) -> tuple[bytes, Message | ProtocolError] | None:
        """Returns the next peer and message, or None; what does not decode comes as its error."""
        frames = self._receive_frames()
        if frames is None:
            return None
        started = time.monotonic()
        try:
            message = decode(frames[1:])
        except ProtocolError as error:
            return frames[0], error
        trace_message(self._tracer, "receive", frames[0], message, started)
        return frames[0], message


class Dealer(_Endpoint):
    """A drafter's end: dials one verifier, and dials again for ever while it is not there."""

    def __init__(
        self,
        address: str,
        high_water_mark: int,
        keys: CurveKeys | None,
        identity: bytes,
        tracer: Tracer = DISABLED,
        max_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        super().__init__(zmq.DEALER, address, high_water_mark, max_bytes)
        self._identity = identity
        self._tracer = tracer
        self._socket.setsockopt(zmq.ROUTING_ID, identity)
        # A message is queued for a verifier that is there, not for one that may come back.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 100)
        self._socket.setsockopt(zmq.RECONNECT_IVL_MAX, 2000)
        if keys is not None:
            self._socket.curve_serverkey = keys.server_public.encode()
            self._socket.curve_publickey = keys.client_public.encode()
            self._socket.curve_secretkey = keys.client_secret.encode()
        self._socket.connect(address)

    def send(self, message: Message) -> bool:
        """Queues ``message``; returns False if the verifier is away or does not keep up."""
        started = time.monotonic()
        try:
            self._socket.send_multipart(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        trace_message(self._tracer, "send", self._identity, message, started)
        return True

    def receive(self) -> Message | ProtocolError | None:
        """Returns the next message, or None; what does not decode comes as its error."""
        received = self.receive_whole()
        return None if received is None else received[0]

    def receive_whole(self) -> tuple[Message | ProtocolError, list[bytes]] | None:
        """Returns the next message with its tensors' frames, or None."""
        frames = self._receive_frames()
        if frames is None:
            return None
        started = time.monotonic()
        try:
            message = decode(frames)
        except ProtocolError as error:
            return error, []
        trace_message(self._tracer, "receive", self._identity, message, started)
        return message, frames[2:]


def probe_bind(address: str) -> None:
    """Raises ``ConfigError`` if ``address`` cannot be bound now: said before a model is loaded."""
    with Router(address, 1, None):
        pass


@contextmanager
def wake_descriptor() -> Iterator[int]:
    """An eventfd: written by any thread to end another one's ``poll``."""
    descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def wait_any(endpoints: Sequence[_Endpoint], wake: int, seconds: float) -> None:
    """Waits until one of ``endpoints`` has a message, ``wake`` is written, or the time is over."""
    poller = zmq.Poller()
    poller.register(wake, zmq.POLLIN)
    for endpoint in endpoints:
        endpoint.register(poller)
    poller.poll(math.ceil(max(0.0, seconds) * 1000))
