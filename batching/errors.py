"""Errors of this package, grouped by who must act.

BatchingError
├── Overloaded          the operator: more work was offered than the bounds allow
│   ├── PoolFull        all slots of the model are in use
│   └── QueueFull       the queue of a stream, or of the engine's commands, is full
├── Misuse              the calling code: a bug there, never caused by a client
│   ├── UnknownStream   the stream was never opened, or is already closed
│   ├── AlreadyOpen     the stream was opened twice
│   ├── StaleHandle     the handle's slot was released, or belongs to another pool
│   ├── RepeatedHandle  one stream appears twice in a batch
│   ├── WrongInput      a step's array does not have the shape and dtype of the model's inputs
│   ├── WrongState      a state to restore does not have the model's size, or the stream has waiting steps
│   └── WrongFrame      bytes between a front end and an engine are not a frame of this version
├── StepFailed          the model: its step raised (that error is the __cause__), or returned a wrong number of rows
└── EngineDown          the operator: the model thread has ended, or does not end in time
"""


class BatchingError(Exception):
    """Base class of the errors of this package."""


class Overloaded(BatchingError):
    """More work was offered than the bounds allow."""


class PoolFull(Overloaded):
    """All slots of the model are in use."""


class QueueFull(Overloaded):
    """The queue of a stream, or of the engine's commands, is full."""


class Misuse(BatchingError):
    """The calling code broke a rule of this package."""


class UnknownStream(Misuse):
    """The stream was never opened, or is already closed."""


class AlreadyOpen(Misuse):
    """The stream was opened twice."""


class StaleHandle(Misuse):
    """The handle's slot was released, or belongs to another pool."""


class RepeatedHandle(Misuse):
    """One stream appears twice in a batch."""


class WrongInput(Misuse):
    """A step's array does not have the shape and dtype of the model's inputs."""


class WrongState(Misuse):
    """A state to restore does not have the model's size, or the stream has waiting steps."""


class WrongFrame(Misuse):
    """Bytes between a front end and an engine are not a frame of this version."""


class StepFailed(BatchingError):
    """The model's step raised (that error is the `__cause__`), or returned a wrong number of rows."""


class EngineDown(BatchingError):
    """The model thread has ended, or does not end in time."""
