"""A mail server that takes every mail, as far as SMTP (RFC 5321) has to be spoken for that. No assertions here."""

from __future__ import annotations

import email.policy
import socketserver
import threading
from email import message_from_bytes
from email.message import EmailMessage


class Mailbox:
    """Listens on 127.0.0.1 from `with` on; `arrived` has the mails in their order."""

    def __init__(self) -> None:
        self.arrived: list[EmailMessage] = []
        mailbox = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                self.say("220 127.0.0.1")
                while (command := self.rfile.readline()).strip():
                    word = command.split()[0].upper()
                    if word == b"EHLO":
                        self.say("250-127.0.0.1\r\n250 AUTH PLAIN LOGIN")
                    elif word == b"AUTH":
                        self.say("235 known")
                    elif word == b"DATA":
                        self.say("354 go on")
                        mailbox.arrived.append(self.mail())
                        self.say("250 taken")
                    elif word == b"QUIT":
                        self.say("221 bye")
                        return
                    else:
                        self.say("250 fine")

            def mail(self) -> EmailMessage:
                lines = iter(self.rfile.readline, b".\r\n")
                content = b"".join(line.removeprefix(b".") for line in lines)
                mail = message_from_bytes(content, policy=email.policy.default)
                assert isinstance(mail, EmailMessage)
                return mail

            def say(self, words: str) -> None:
                self.wfile.write(words.encode() + b"\r\n")

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        """For Apprise: plain SMTP, with a password."""
        place = f"127.0.0.1:{self._server.server_address[1]}"
        return f"mailto://somebody:pa55word@{place}/?mode=insecure&from=alerts@example.org&to=oncall@example.org"

    def __enter__(self) -> Mailbox:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
