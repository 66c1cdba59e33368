"""Proxy between an operator and the API server: impersonates the operator's service account and injects write faults."""

import http.client
import json
import re
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# Service account of the operator and its groups.
ACCOUNT = "system:serviceaccount:seldon-mesh:gantry-operator"
GROUPS = ("system:serviceaccounts", "system:serviceaccounts:seldon-mesh", "system:authenticated")
# Hop-by-hop headers.
HOP = {"connection", "keep-alive", "transfer-encoding", "host", "content-length"}
REASONS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError", 503: "ServiceUnavailable"}


class Proxy:
    """Plain HTTP on loopback; `config` is a kubeconfig for it."""

    def __init__(self, admin, place):
        given = json.loads(open(admin).read())
        cluster, user = given["clusters"][0]["cluster"], given["users"][0]["user"]
        self.server = urlsplit(cluster["server"])
        self.tls = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self.tls.load_cert_chain(user["client-certificate"], user["client-key"])
        self.lock = threading.Lock()
        # Committed writes as "METHOD path", except events and leases.
        self.writes = []
        self.attempts = 0
        self.harm = {}
        self.upstreams = set()
        # Upstream connections with a write in flight.
        self.writing = set()
        proxy = self

        class Handler(Passing):
            pass

        Handler.proxy = proxy
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        self.config = str(place / f"proxy-{self.http.server_port}.json")
        with open(self.config, "w") as file:
            json.dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "p", "cluster": {"server": f"http://127.0.0.1:{self.http.server_port}"}}],
                    "users": [{"name": "p", "user": {}}],
                    "contexts": [{"name": "p", "context": {"cluster": "p", "user": "p"}}],
                    "current-context": "p",
                },
                file,
            )

    def refuse(self, nth, code):
        """Fails the nth write request with a status code."""
        self.harm[nth] = code

    def after(self, nth, call):
        """Calls back after the nth committed write; its response is dropped."""
        self.harm[nth] = call

    def count(self):
        with self.lock:
            self.attempts += 1
            return self.harm.get(self.attempts)

    def cut(self):
        """Closes all connections: the client is gone. Writes in flight complete: the API server cancels a request whose
        connection closes, and may commit it without a success in the audit log."""
        with self.lock:
            connections = list(self.upstreams - self.writing)
        for connection in connections:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except (AttributeError, OSError):
                pass

    def close(self):
        self.http.shutdown()
        self.cut()
        self.http.server_close()


class Passing(BaseHTTPRequestHandler):
    """One client connection with its upstream connection."""

    protocol_version = "HTTP/1.1"
    proxy = None

    def setup(self):
        super().setup()
        where = self.proxy.server
        self.upstream = http.client.HTTPSConnection(where.hostname, where.port, context=self.proxy.tls)
        with self.proxy.lock:
            self.proxy.upstreams.add(self.upstream)

    def finish(self):
        with self.proxy.lock:
            self.proxy.upstreams.discard(self.upstream)
        self.upstream.close()
        try:
            super().finish()
        except OSError:
            pass

    def log_message(self, *_):
        pass

    def pass_on(self):
        try:
            self.answer()
        except (OSError, http.client.HTTPException, ValueError):
            # One side is gone; closing the connection informs the other.
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = pass_on

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.split("?")[0]
        counts = self.command != "GET" and not re.search(r"/(events|leases)(/|$)", path)
        harm = self.proxy.count() if counts else None
        if isinstance(harm, int):
            return self.refuse(harm)
        if not counts:
            return self.stream(self.forward(body))
        with self.proxy.lock:
            self.proxy.writing.add(self.upstream)
        try:
            response = self.forward(body)
            whole = response.read()
        finally:
            with self.proxy.lock:
                self.proxy.writing.discard(self.upstream)
        if response.status < 300:
            with self.proxy.lock:
                self.proxy.writes.append(f"{self.command} {path}")
        if harm:
            harm()
            self.close_connection = True
            return
        self.send(response, whole)

    def forward(self, body):
        """Sends the request upstream; returns the response with an unread body."""
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        headers["Impersonate-User"] = ACCOUNT
        self.upstream.putrequest(self.command, self.path, skip_accept_encoding=True)
        for name, value in headers.items():
            self.upstream.putheader(name, value)
        for group in GROUPS:
            self.upstream.putheader("Impersonate-Group", group)
        self.upstream.putheader("Content-Length", str(len(body)))
        self.upstream.endheaders(body)
        return self.upstream.getresponse()

    def refuse(self, code):
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "reason": REASONS[code],
            "message": "injected by the test proxy",
            "code": code,
        }
        if code == 429:
            status["details"] = {"retryAfterSeconds": 1}
        whole = json.dumps(status).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        if code == 429:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)

    def begin(self, response):
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)

    def send(self, response, whole):
        self.begin(response)
        self.send_header("Content-Length", str(len(whole)))
        self.end_headers()
        self.wfile.write(whole)

    def stream(self, response):
        """Streams the response: it may be a watch."""
        if not response.chunked:
            return self.send(response, response.read())
        self.begin(response)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while part := response.read1(1 << 16):
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")
