"""
A contract for tests of the processes: the path of a request names what the code does, as users' code may do it.

It is run by `make`, like the contracts of `headrace_handler.contracts`.
"""

import asyncio
import ctypes
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from headrace_handler.contract import Call, Item, Load, LoadFailed
from headrace_handler.frames import Kind, encode, send_some


class Behaviours:
    def load(self, load: Load) -> None:
        self.num_calls = 0
        entry = load.entry
        if entry == "refuses":
            raise LoadFailed(507, "System out of memory")
        if entry == "raises":
            raise KeyError("model_id")
        if entry == "exits":
            print("no weights here")
            sys.exit(3)
        if entry == "hangs":
            time.sleep(600)
        if entry == "dies on the second start":
            marker = load.model_dir / "started"
            if marker.exists():
                os._exit(9)
            marker.touch()

    def call(self, call: Call) -> None:
        self.num_calls += 1
        if call.items[0].path == "/stream_in_threads":
            self.stream_in_threads(call)
            return
        for item in call.items:
            self.item(item, call)

    def stream_in_threads(self, call: Call) -> None:
        streams = [(item, bytes(item.parts[0].content), call) for item in call.items]
        threads = [threading.Thread(target=self.do_stream, args=stream) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def item(self, item: Item, call: Call) -> None:
        body = bytes(item.parts[0].content) if item.parts else b""
        action = item.path.strip("/") or "echo"
        getattr(self, f"do_{action}")(item, body, call)

    def answer(self, item: Item, body: bytes, status: int = 200) -> None:
        item.reply.head(status, [("content-type", "text/plain"), ("X-Own", "é"), ("x-batch", "1")])
        item.reply.end(body)

    def do_attack(self, item: Item, body: bytes, call: Call) -> None:
        """Write to the server's socket what no contract writes."""
        socket, own = item.reply._link._socket, item.reply._id
        sparse, (pipe, _) = os.memfd_create("sparse"), os.pipe()
        os.ftruncate(sparse, 1 << 40)
        head = encode(Kind.HEAD, {"id": own, "status": 200, "phrase": ""})
        attacks = {
            "status": (encode(Kind.RESPONSE, {"id": own, "status": float("inf"), "phrase": ""}), []),
            "length": ([(1 << 29).to_bytes(4, "big") + bytes(5)], []),
            "header": ([(5 + (2 << 20)).to_bytes(4, "big") + b"\0" + (2 << 20).to_bytes(4, "big")], []),
            "flood": ([*head, *(64 * encode(Kind.DATA, {"id": own}, [b"x"]))], []),
            "descriptors": ([b"\0"], [pipe] * 200),
            "sparse": (encode(Kind.DATA, {"id": own, "memfds": 1, "length": 1 << 40}), [sparse]),
            "pipe": (encode(Kind.DATA, {"id": own, "memfds": 1, "length": 1}), [pipe]),
            "negative": (encode(Kind.DATA, {"id": own, "memfds": 1, "length": -1}), [sparse]),
        }
        send_some(socket, *attacks[body.decode()])
        time.sleep(600)

    def do_echo(self, item: Item, body: bytes, call: Call) -> None:
        self.answer(item, body)

    def do_headers(self, item: Item, body: bytes, call: Call) -> None:
        self.answer(item, json.dumps(dict(item.headers)).encode())

    def do_count(self, item: Item, body: bytes, call: Call) -> None:
        self.answer(item, str(self.num_calls).encode())

    def do_size(self, item: Item, body: bytes, call: Call) -> None:
        self.answer(item, str(len(call.items)).encode())

    def do_pid(self, item: Item, body: bytes, call: Call) -> None:
        time.sleep(0.005)
        self.answer(item, str(os.getpid()).encode())

    def do_facts(self, item: Item, body: bytes, call: Call) -> None:
        facts = [str(Path.cwd()), os.environ.get("SECRET"), sys.stdin.read(), threading.current_thread().name]
        self.answer(item, repr(facts).encode())

    def do_stream(self, item: Item, body: bytes, call: Call) -> None:
        item.reply.head(200, [("content-type", "text/plain")])
        for number in range(int(body)):
            item.reply.data(b"part %d\n" % number)
        item.reply.end()

    def do_endless(self, item: Item, body: bytes, call: Call) -> None:
        item.reply.head(200)
        number = 0
        while True:
            item.reply.data(b"x" * 1000)
            number += 1
            Path("sent").write_text(str(number))

    def do_sleep(self, item: Item, body: bytes, call: Call) -> None:
        time.sleep(float(body))
        self.answer(item, b"slept")

    def do_stall(self, item: Item, body: bytes, call: Call) -> None:
        item.reply.head(200)
        item.reply.data(b"first")
        time.sleep(600)

    def do_until_cancelled(self, item: Item, body: bytes, call: Call) -> None:
        while not item.reply.is_cancelled:
            time.sleep(0.01)

    def do_nothing(self, item: Item, body: bytes, call: Call) -> None:
        pass

    def do_raise(self, item: Item, body: bytes, call: Call) -> None:
        raise RuntimeError("contract failed")

    def do_break(self, item: Item, body: bytes, call: Call) -> None:
        item.reply.head(200)
        item.reply.data(b"begun")
        item.reply.abort("broken on purpose")

    def do_begin_and_die(self, item: Item, body: bytes, call: Call) -> None:
        item.reply.head(200)
        item.reply.data(b"begun")
        os._exit(4)

    def do_sys_exit(self, item: Item, body: bytes, call: Call) -> None:
        sys.exit("bye")

    def do_os_exit(self, item: Item, body: bytes, call: Call) -> None:
        os._exit(5)

    def do_segfault(self, item: Item, body: bytes, call: Call) -> None:
        ctypes.string_at(0)

    def do_memory_error(self, item: Item, body: bytes, call: Call) -> None:
        raise MemoryError

    def do_kill(self, item: Item, body: bytes, call: Call) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def do_answer_and_die(self, item: Item, body: bytes, call: Call) -> None:
        self.answer(item, b"last words")
        os._exit(6)

    def do_print(self, item: Item, body: bytes, call: Call) -> None:
        sys.stdout.buffer.write(b"\xff\x00 binary\n")
        sys.stdout.flush()
        os.write(2, b"no newline " * 2000)
        print("line of the user's code")
        self.answer(item, b"printed")

    def do_fork(self, item: Item, body: bytes, call: Call) -> None:
        """Fork and return on both sides, as naive code does."""
        os.fork()
        self.answer(item, b"forked")

    def do_fork_and_sleep(self, item: Item, body: bytes, call: Call) -> None:
        child = os.fork()
        if not child:
            time.sleep(600)
        self.answer(item, str(child).encode())

    def do_subprocess(self, item: Item, body: bytes, call: Call) -> None:
        listing = subprocess.run(["ls", "/proc/self/fd"], check=True, capture_output=True)
        self.answer(item, listing.stdout)

    def do_close_all(self, item: Item, body: bytes, call: Call) -> None:
        os.closerange(0, 4096)
        self.answer(item, b"unreachable")

    def do_write_to_socket(self, item: Item, body: bytes, call: Call) -> None:
        for entry in list(Path("/proc/self/fd").iterdir()):
            if int(entry.name) >= 200:
                os.write(int(entry.name), b"\xff" * 64)
        time.sleep(600)

    def do_signals(self, item: Item, body: bytes, call: Call) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.answer(item, b"deaf")

    def do_sigterm_handler(self, item: Item, body: bytes, call: Call) -> None:
        signal.signal(signal.SIGTERM, lambda *_: print("not yet"))
        os.kill(os.getpid(), signal.SIGTERM)
        self.answer(item, b"still here")

    def do_sigterm_handler_that_exits(self, item: Item, body: bytes, call: Call) -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        os.kill(os.getpid(), signal.SIGTERM)

    def do_os_exit_in_thread(self, item: Item, body: bytes, call: Call) -> None:
        threading.Thread(target=os._exit, args=(7,)).start()
        time.sleep(600)

    def do_alarm(self, item: Item, body: bytes, call: Call) -> None:
        set_alarm(0.02)
        try:
            time.sleep(600)
        except TimeoutError:
            self.answer(item, b"late")

    def do_alarm_in_stream(self, item: Item, body: bytes, call: Call) -> None:
        """Time out while the client does not keep up."""
        item.reply.head(200)
        set_alarm(0.2)
        try:
            while True:
                item.reply.data(b"part\n")
        except TimeoutError:
            item.reply.end(b"late")

    def do_alarm_left_behind(self, item: Item, body: bytes, call: Call) -> None:
        set_alarm(0.02)
        self.answer(item, b"forgotten")

    def do_asyncio_run(self, item: Item, body: bytes, call: Call) -> None:
        asyncio.run(asyncio.sleep(0.001))
        self.answer(item, b"run")

    def do_multiprocessing(self, item: Item, body: bytes, call: Call) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which a pool ends its processes
        for method in ("fork", "spawn"):
            with multiprocessing.get_context(method).Pool(1) as pool:
                assert pool.map(abs, [-1, 2]) == [1, 2]
        self.answer(item, b"mapped")

    def do_chdir(self, item: Item, body: bytes, call: Call) -> None:
        os.chdir("/")
        self.answer(item, b"elsewhere")

    def do_setrlimit(self, item: Item, body: bytes, call: Call) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
        self.answer(item, b"limited")

    def do_flood(self, item: Item, body: bytes, call: Call) -> None:
        """Print more than pipes and the log's limit of speed take at once."""
        for _ in range(64):
            os.write(1, b"y" * 65536)
        self.answer(item, b"printed")

    def do_keep_printing(self, item: Item, body: bytes, call: Call) -> None:
        def keep_printing() -> None:
            while True:
                print("tick")

        threading.Thread(target=keep_printing, daemon=True).start()
        self.answer(item, b"noisy")

    def do_daemonize(self, item: Item, body: bytes, call: Call) -> None:
        """Leave a grandchild in a session of its own that holds the pipes and the socket."""
        reading, writing = os.pipe()
        if not os.fork():
            os.setsid()
            if (grandchild := os.fork()) == 0:
                time.sleep(600)
            os.write(writing, str(grandchild).encode())
            os._exit(0)
        self.answer(item, os.read(reading, 20))

    def do_threads(self, item: Item, body: bytes, call: Call) -> None:
        """Leave a thread behind that would keep an ordinary process alive."""
        threading.Thread(target=time.sleep, args=(600,)).start()
        self.answer(item, b"busy")

    def do_thread_answers(self, item: Item, body: bytes, call: Call) -> None:
        thread = threading.Thread(target=self.answer, args=(item, b"from a thread"))
        thread.start()
        thread.join()


def set_alarm(after_s: float) -> None:
    """Make a signal handler raise on the main thread."""

    def raise_late(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, raise_late)
    signal.setitimer(signal.ITIMER_REAL, after_s)


class AsyncBehaviours(Behaviours):
    """The same with calls on an event loop, if the entry is `asynchronous`."""

    loop: asyncio.AbstractEventLoop | None = None

    def load(self, load: Load) -> None:
        super().load(load)
        self.most_at_once = self.num_at_once = 0
        if load.entry == "asynchronous":
            self.loop = asyncio.new_event_loop()

    async def call_async(self, call: Call) -> None:
        self.num_at_once += 1
        self.most_at_once = max(self.most_at_once, self.num_at_once)
        for item in call.items:
            if item.path == "/meet":
                while self.most_at_once < 3:
                    await asyncio.sleep(0.01)
                self.answer(item, b"met")
            elif item.path == "/fail":
                raise RuntimeError("contract failed")
            else:
                await asyncio.to_thread(self.item, item, call)
        self.num_at_once -= 1


def make() -> AsyncBehaviours:
    return AsyncBehaviours()
