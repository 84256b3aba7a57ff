import os
import socket

from headrace.tools.bench.local_process import server_cpu_s

SOCKETS = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 777 1
   1: 0100007F:1F90 0100007F:9999 01 00000000:00000000 00:00000000 00000000     0        0 888 1
"""


def add_process(proc, pid: int, parent: int, ticks: int, inode: int | None = None) -> None:
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    numbers = [0] * 30
    numbers[0], numbers[10] = parent, ticks
    (folder / "stat").write_text(f"{pid} (a (b) c) S " + " ".join(map(str, numbers)))
    if inode is not None:
        (folder / "fd" / "3").symlink_to(f"socket:[{inode}]")


def test_time_is_that_of_the_listener_and_its_descendants(tmp_path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(SOCKETS)
    add_process(tmp_path, 10, parent=1, ticks=100, inode=777)
    add_process(tmp_path, 11, parent=10, ticks=20)
    add_process(tmp_path, 12, parent=11, ticks=3)
    add_process(tmp_path, 13, parent=1, ticks=5000, inode=888)
    assert server_cpu_s(8080, tmp_path) == 123 / os.sysconf("SC_CLK_TCK")


def test_a_port_without_a_listener_has_no_cpu_time() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert server_cpu_s(bound.getsockname()[1]) is None


def test_this_process_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        seconds = server_cpu_s(listener.getsockname()[1])
    assert seconds is not None
    assert seconds > 0
