"""A small milter for tests: speaks version 6 of the protocol, by default on a port of its own.

Its rules are a function that gets a message with all that was said of it, and returns the frames that
answer its end, without the last one. It records every session.
"""

import socket
import struct
import threading

CONTINUE = b"c"


def frame(code, data=b""):
    return struct.pack(">I", len(data) + 1) + code + data


def strings(*texts):
    return b"".join(text.encode() + b"\0" for text in texts)


class Message:
    """What the milter was told."""

    def __init__(self):
        self.client, self.helo, self.sender, self.recipients, self.fields = None, None, None, [], []
        self.body, self.macros, self.refused = b"", {}, []


class Milter:
    def __init__(self, rules=lambda message: [], options=0, answers=None, port=0, is_slow=False):
        """`answers`: frames in place of `continue`, by the code of the command; None closes the connection.
        `is_slow`: each octet of an answer is sent alone.
        """
        self.is_slow = is_slow
        self.rules, self.options, self.answers = rules, options, answers or {}
        self.messages, self.connections, self.commands = [], 0, []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self):
        self._listener.close()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        message = Message()
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(4):
                data = stream.read(struct.unpack(">I", head)[0])
                code, data = data[:1], data[1:]
                self.commands.append(code.decode())
                if code == b"E":
                    self.messages.append(message)  # before the answer, after which the server replies to its client
                try:
                    if (answer := self._answer(message, code, data)) is None:
                        return
                    pieces = [bytes([octet]) for octet in answer] if self.is_slow else [answer]
                    for piece in pieces:
                        connection.sendall(piece)
                except OSError:
                    return
                if code in b"EAK":
                    client, helo = message.client, message.helo
                    message = Message()
                    message.client, message.helo = client, helo
                if code == b"Q":
                    return

    def _answer(self, message, code, data):
        if code == b"O":
            return frame(b"O", struct.pack(">III", 6, 0x1FF, self.options))
        words = data.split(b"\0")[:-1]
        if code == b"D":
            names = [word.decode() for word in data[1:].split(b"\0")[:-1]]
            message.macros |= dict(zip(names[::2], names[1::2]))
        elif code == b"C":
            message.client = data
        elif code == b"H":
            message.helo = words[0].decode()
        elif code == b"M":
            message.sender = [word.decode() for word in words]
        elif code == b"R":
            is_refused = message.macros.pop("{rcpt_mailer}", None) == "error"
            (message.refused if is_refused else message.recipients).append([word.decode() for word in words])
        elif code == b"L":
            message.fields.append((words[0].decode(), words[1].decode()))
        elif code == b"B":
            message.body += data
        if code in b"DAQK":
            return b""
        if code == b"E" and code not in self.answers:
            return b"".join(self.rules(message)) + frame(CONTINUE)
        return self.answers.get(code, frame(CONTINUE))
