"""Which extra of hocket brings a package that is not installed."""

from __future__ import annotations

from hocket.errors import MissingPackage

_EXTRAS = {
    "keras": "keras",
    "matplotlib": "plot",
    "mlxtend": "demo",
    "mpi4py": "mpi",
    "sklearn": "bench",
    "torch": "torch",
    "ucxx": "ucx",
}
_OTHER_BACKENDS_OF_KERAS = ("tensorflow", "jax")


def explain_missing(error: ModuleNotFoundError, needed_by: str) -> MissingPackage | None:
    """Return an error that says what to do about a package that is not installed; None where hocket does not know.

    Args:
        error: of the import.
        needed_by: what was asked for, such as "hocket.keras.fit".
    """
    package = (error.name or "").partition(".")[0]
    if package in _OTHER_BACKENDS_OF_KERAS:
        return MissingPackage(
            f"{needed_by} needs Keras on torch, and Keras looks for {package}: export KERAS_BACKEND=torch", name=package
        )
    if package not in _EXTRAS:
        return None
    return MissingPackage(f"{needed_by} needs {package}: pip install 'hocket[{_EXTRAS[package]}]'", name=package)
