"""A W&B server on loopback that keeps what `wandb sync` uploads: enough of the GraphQL and file-stream
interfaces for the real client to finish."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Run:
    def __init__(self):
        self.upserts = []  # variables of each UpsertBucket
        self.history = []  # rows, at the place that the client gave them
        self.summary = None
        self.files = {}  # name -> bytes
        self.exit_code = None
        self.asked_to_resume = False

    @property
    def config(self):
        config = {}
        for upsert in self.upserts:
            if upsert.get("config"):
                config = json.loads(upsert["config"])
        return {key: entry["value"] for key, entry in config.items() if key != "_wandb"}

    def stream(self, body):
        for name, part in body.get("files", {}).items():
            lines = [json.loads(line) for line in part["content"]]
            if name == "wandb-history.jsonl":
                del self.history[part["offset"] :]
                self.history += lines
            elif name == "wandb-summary.json":
                self.summary = lines[-1]
        if body.get("complete"):
            self.exit_code = body["exitcode"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def reply(self, answer):
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_POST(self):
        body = json.loads(self.body())
        with self.server.lock:
            if self.path == "/graphql":
                answer = getattr(self, body["operationName"], lambda variables: {})(body["variables"])
                self.reply({"data": answer})
            else:  # /files/ENTITY/PROJECT/RUN/file_stream
                self.server.runs[self.path.split("/")[-2]].stream(body)
                self.reply({})

    def do_PUT(self):
        body = self.body()
        _, _, run, name = self.path.split("/", 3)
        with self.server.lock:
            self.server.runs[run].files[name] = body
        self.reply({})

    # GraphQL operations, by their names

    def UpsertBucket(self, variables):
        run = self.server.runs.setdefault(variables["name"], Run())
        run.upserts.append(variables)
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": variables["entity"] or "us"}}
        bucket = {"id": "b", "name": variables["name"], "displayName": variables["displayName"], "project": project}
        return {"upsertBucket": {"bucket": bucket, "inserted": len(run.upserts) == 1}}

    def RunResumeStatus(self, variables):
        run = self.server.runs.get(variables["name"])
        if run is None:
            return {"model": {"id": "p", "name": variables["project"], "bucket": None}}
        run.asked_to_resume = True
        bucket = {
            "id": "b",
            "name": variables["name"],
            "summaryMetrics": json.dumps(run.summary or {}),
            "logLineCount": 0,
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in run.history[-1:]]),
            "eventsTail": "[]",
            "config": run.upserts[-1]["config"],
            "tags": [],
            "wandbConfig": json.dumps({"t": json.loads(run.upserts[-1]["config"])["_wandb"]["value"]["t"]}),
        }
        project = {"id": "p", "name": variables["project"], "entity": {"id": "e", "name": "us"}}
        return {"model": {**project, "bucket": bucket}}

    def CreateRunFiles(self, variables):
        url = f"http://127.0.0.1:{self.server.server_port}/upload/{variables['run']}/"
        files = [{"name": name, "uploadUrl": url + name} for name in variables["files"]]
        return {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that hangs up is no error; what a handler gets wrong fails the test's checks."""


@contextlib.contextmanager
def wandb_server():
    """Gives the server: `.url`, and `.runs` by id."""
    server = Server(("127.0.0.1", 0), Handler)
    server.runs, server.lock = {}, threading.Lock()
    server.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
