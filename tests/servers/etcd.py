"""etcd, one server or an ensemble; a look at its keys that goes past all locks."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.client
import json
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.servers.clocks import Clock
from tests.servers.debian import program
from tests.servers.ensemble import Ensemble
from tests.servers.process import HOST, Server, free_port
from tests.servers.proxy import Proxy

#: The account that may do everything, where a password is asked for.
ROOT = "root"
#: Seconds until the server has to answer a request of the tests themselves.
_LIMIT = 10.0
_PREFIX_OF_ALL = b"\0"


class Refused(Exception):
    """The server has answered with an error."""


class Certificates:
    """An authority, and the certificates of a server on 127.0.0.1 and of a client, as PEM files."""

    def __init__(self, folder: Path) -> None:
        self.ca = folder / "ca.pem"
        self.server, self.server_key = folder / "server.pem", folder / "server.key"
        self.client, self.client_key = folder / "client.pem", folder / "client.key"
        self._folder = folder

    def make(self, server: Server) -> None:
        """Make the files, as the user of ``server``."""
        key = "-newkey rsa:2048 -nodes -days 2"
        usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
        authority = f"req -x509 {key} -subj /CN=authority {usage} -keyout ca.key -out ca.pem"
        self._openssl(server, authority)
        # Python 3.13 and later want to know by which key a certificate was signed.
        signer = "authorityKeyIdentifier=keyid\nsubjectKeyIdentifier=hash\n"
        server.write("server.ext", f"subjectAltName=IP:{HOST}\n{signer}")
        for name, extensions in (("server", "-extfile server.ext"), ("client", "")):
            # A common name would be the user for etcd, also for what its own gateway asks.
            request = f"req {key} -subj /O=tests -keyout {name}.key -out {name}.csr"
            self._openssl(server, request)
            signing = f"x509 -req -in {name}.csr -days 2 -CA ca.pem -CAkey ca.key -CAcreateserial"
            self._openssl(server, f"{signing} {extensions} -out {name}.pem")

    def context(self) -> ssl.SSLContext:
        """Return how a client connects."""
        context = ssl.create_default_context(cafile=self.ca)
        context.load_cert_chain(self.client, self.client_key)
        return context

    def _openssl(self, server: Server, arguments: str) -> None:
        server.run(program("openssl"), *arguments.split())


class Etcd(Server):
    """An ``etcd``; alone, or ``name`` of the ``peers`` of an ensemble.

    ``flags`` are command line flags that differ from those below. With ``tls`` it speaks nothing
    else with its clients, and asks them for a certificate; see ``certificates``. With ``password``
    it serves only users, and ``root`` has that password. The ``clock`` of one that is ``movable``
    can be moved while it runs.
    """

    name = "etcd"

    def __init__(
        self,
        flags: Mapping[str, str] | None = None,
        *,
        tls: bool = False,
        password: str | None = None,
        movable: bool = False,
        number: int = 1,
        peers: Mapping[int, int] | None = None,
    ) -> None:
        """``peers`` gives for each number of the ensemble the port that the others connect to."""
        super().__init__()
        self.certificates = Certificates(self.folder) if tls else None
        self.password = password
        self.clock = Clock(self.folder) if movable else None
        self._flags = dict(flags or {})
        self._number = number
        #: the port on which it listens for the others
        self.peer_port = free_port()
        self._peers = {number: self.peer_port} if peers is None else peers
        self._guarded = False

    @property
    def scheme(self) -> str:
        return "https" if self.certificates else "http"

    @property
    def hosts(self) -> str:
        """The address, without the scheme."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.hosts}"

    def install(self) -> None:
        if self.certificates:
            self.certificates.make(self)

    def command(self) -> list[str]:
        flags = {
            "name": f"member-{self._number}",
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": f"http://{HOST}:{self.peer_port}",
            "initial-advertise-peer-urls": f"http://{HOST}:{self._peers[self._number]}",
            "initial-cluster": ",".join(
                f"member-{number}=http://{HOST}:{port}" for number, port in self._peers.items()
            ),
            "initial-cluster-token": f"tests-{min(self._peers.values())}",
            "bcrypt-cost": "4",
            "logger": "zap",
            "log-outputs": "stderr",
            **self._flags,
        }
        if tls := self.certificates:
            flags |= {
                "cert-file": str(tls.server),
                "key-file": str(tls.server_key),
                "trusted-ca-file": str(tls.ca),
                "client-cert-auth": "true",
            }
        clock = self.clock.prefix() if self.clock else []
        return [*clock, program("etcd"), *(f"--{flag}={value}" for flag, value in flags.items())]

    def answers(self) -> bool:
        """See Server.answers(); a member that is not in touch with most others answers nobody."""
        try:
            return bool(self._get("/health").get("health") == "true")
        except (OSError, http.client.HTTPException, Refused):
            return False

    def await_answer(self) -> None:
        super().await_answer()
        if self.password and len(self._peers) == 1 and not self._guarded:
            self.guard(self.password)

    def guard(self, password: str, others: Sequence[Etcd] = ()) -> None:
        """Serve only users from now on; ``root`` has this password."""
        self.ask("auth/role/add", name=ROOT)
        self.ask("auth/user/add", name=ROOT, password=password)
        self.ask("auth/user/grant", user=ROOT, role=ROOT)
        self.ask("auth/enable")
        for member in (self, *others):
            member.password, member._guarded = password, True

    def end_tokens(self) -> None:
        """Let all users have to say their passwords again, as they have to after some minutes."""
        self.ask("auth/disable")
        self._post("auth/enable", {}, {})

    def close(self) -> None:
        """See Server.close(). It would wait for the streams of its clients to end."""
        self.kill()
        super().close()

    # What it knows

    def leads(self) -> bool:
        """Whether it is the leader, as far as it knows."""
        with contextlib.suppress(OSError, http.client.HTTPException, Refused):
            status = self.ask("maintenance/status")
            return bool(status["header"]["member_id"] == status.get("leader"))
        return False

    def member_id(self) -> str:
        return str(self.ask("maintenance/status")["header"]["member_id"])

    def lead(self, successor: Etcd) -> None:
        """Let another member lead in its place."""
        self.ask("maintenance/transfer-leadership", targetID=successor.member_id())

    def revision(self) -> int:
        return int(self.ask("maintenance/status")["header"]["revision"])

    def compact(self, revision: int | None = None) -> None:
        """Forget all that was before a revision, the present one unless told otherwise."""
        self.ask("kv/compaction", revision=str(revision or self.revision()), physical=True)

    def keys(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Return all keys that begin so, oldest first, with all that there is to know of them."""
        found = self.ask("kv/range", **_range(prefix), sort_target="CREATE", sort_order="ASCEND")
        decode = base64.b64decode
        return {
            decode(one["key"]).decode(): {**one, "value": decode(one.get("value", ""))}
            for one in found.get("kvs", [])
        }

    def put(self, key: str, value: str = "", lease: int | str = 0) -> None:
        self.ask("kv/put", key=_encoded(key), value=_encoded(value), lease=str(lease))

    def delete(self, prefix: str) -> int:
        """Delete all keys that begin so, and tell how many there were."""
        return int(self.ask("kv/deleterange", **_range(prefix)).get("deleted", 0))

    def leases(self) -> list[str]:
        """Return the ids of all leases."""
        return [lease["ID"] for lease in self.ask("lease/leases").get("leases", [])]

    def time_to_live(self, lease: str) -> dict[str, Any]:
        """Return what is known of a lease; its ``TTL`` is in seconds, -1 if there is none."""
        return self.ask("lease/timetolive", ID=lease, keys=True)

    def revoke(self, lease: str) -> None:
        """End a lease, and delete its keys."""
        self.ask("lease/revoke", ID=lease)

    def ask(self, path: str, **request: Any) -> dict[str, Any]:
        """Ask the server itself, never through a proxy, as one that may do everything."""
        headers = {}
        if self._guarded:
            known = self._post("auth/authenticate", {"name": ROOT, "password": self.password}, {})
            headers["Authorization"] = known["token"]
        return self._post(path, request, headers)

    def _post(self, path: str, request: dict[str, Any], headers: dict[str, str]) -> dict[str, Any]:
        return self._send("POST", f"/v3/{path}", json.dumps(request), headers)

    def _get(self, path: str) -> dict[str, Any]:
        return self._send("GET", path, None, {})

    def _send(
        self, method: str, path: str, body: str | None, headers: dict[str, str]
    ) -> dict[str, Any]:
        connect: Any = http.client.HTTPConnection
        if self.certificates:
            connect = functools.partial(
                http.client.HTTPSConnection, context=self.certificates.context()
            )
        with contextlib.closing(connect(self.host, self.port, timeout=_LIMIT)) as connection:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            text = reply.read().decode()
        if reply.status != 200:
            raise Refused(text)
        answer: dict[str, Any] = json.loads(text)
        return answer


class EtcdEnsemble(Ensemble[Etcd]):
    """Several etcd servers that are one service.

    A member of those that are ``separable`` can be cut off from the others.
    """

    def __init__(
        self,
        size: int = 3,
        flags: Mapping[str, str] | None = None,
        *,
        password: str | None = None,
        movable: bool = False,
        separable: bool = False,
    ) -> None:
        peers: dict[int, int] = {}
        super().__init__(
            [
                Etcd(flags, password=password, movable=movable, number=number, peers=peers)
                for number in range(1, size + 1)
            ]
        )
        ports = [member.peer_port for member in self.members]
        #: what leads the others to each member, in their order
        self._networks = [Proxy(port) for port in ports] if separable else []
        if separable:
            ports = [network.port for network in self._networks]
        peers.update(enumerate(ports, 1))

    def isolate(self, member: Etcd) -> None:
        """Cut a member off from the others, in both directions, until `heal`."""
        mark = f"X-Server-From: {int(member.member_id()):x}".encode()
        for one, network in zip(self.members, self._networks, strict=True):
            if one is member:
                network.refuse()
            else:
                network.refuse_from(mark)

    def heal(self) -> None:
        for network in self._networks:
            network.heal()
        super().heal()

    def close(self) -> None:
        super().close()
        for network in self._networks:
            network.close()

    def start(self) -> Self:
        super().start()
        first, *others = self.members
        if first.password:
            first.guard(first.password, others)
        return self


def _encoded(text: str | bytes) -> str:
    return base64.b64encode(text.encode() if isinstance(text, str) else text).decode()


def _range(prefix: str) -> dict[str, str]:
    """Return the fields of a request for all keys that begin so."""
    start = prefix.encode()
    if not start:
        return {"key": _encoded(_PREFIX_OF_ALL), "range_end": _encoded(_PREFIX_OF_ALL)}
    return {"key": _encoded(start), "range_end": _encoded(start[:-1] + bytes([start[-1] + 1]))}
