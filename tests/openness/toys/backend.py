"""A backend that is gloo under another name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from hocket.backends import BackendJob, Finding, LinkSpec, Requirements, Tested
from hocket.backends.gloo import GlooBackend


class ToyBackend(GlooBackend):
    name: ClassVar[str] = "toy"
    link: ClassVar[LinkSpec | None] = LinkSpec(3e-6, 2.0)
    link_between_hosts: ClassVar[LinkSpec | None] = LinkSpec(60e-6, 1.0)
    requires: ClassVar[Requirements] = Requirements("torch", {"torch": ("toy",)})
    tested: ClassVar[Tested | None] = Tested(num_ranks=(2,))

    @classmethod
    def find_reason_against(cls, job: BackendJob) -> str | None:
        return super(GlooBackend, cls).find_reason_against(job)  # without gloo's condition that torch is imported

    @classmethod
    def diagnose(cls) -> Iterator[Finding]:
        yield Finding("toy", "note", "it is a toy", "use another one")

    @property
    def description(self) -> str:
        return "a toy"


ADAPTER = ToyBackend
