"""Processes that are cut off: their connections carry nothing until they are healed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from benchmarks import netns
from benchmarks.faults.cuts import cut, ports_of

SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
peer = server.accept()[0]
while data := peer.recv(1):
    peer.sendall(data)
"""
# Sends a byte for a line that is not empty, and waits for the answer for as many seconds as the line says.
CLIENT = """
import socket, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for line in sys.stdin:
    sent, seconds = line.split()
    if sent == "send":
        peer.sendall(b"x")
    peer.settimeout(float(seconds))
    try:
        print("answer" if peer.recv(1) else "end", flush=True)
    except TimeoutError:
        print("nothing", flush=True)
"""


def test_a_process_that_is_cut_off_hears_nothing_until_it_is_healed() -> None:
    if reason := netns.unavailable_reason():
        pytest.skip(reason)
    with pytest.raises(netns.NetnsError, match="no network namespace of its own"):
        cut(os.getpid())
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    with netns.Net(1) as net:
        server = subprocess.Popen(net.command(0, [sys.executable, "-c", SERVER]), **pipes)
        port = int(server.stdout.readline())
        client = subprocess.Popen(net.command(0, [sys.executable, "-c", CLIENT, str(port)]), **pipes)

        def ask(what: str) -> str:
            client.stdin.write(what + "\n")
            return client.stdout.readline().strip()

        try:
            assert ask("send 60") == "answer"
            assert ports_of(server.pid) == {port}
            heal = cut(server.pid)
            assert ask("send 0.5") == "nothing"
            heal()
            assert ask("wait 60") == "answer"
        finally:
            for process in (client, server):
                process.kill()
                process.communicate()
