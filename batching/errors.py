"""Errors of this package, grouped by who must act.

BatchingError
├── Overloaded          the operator: more work was offered than the bounds allow
│   ├── PoolFull        every slot of the model is taken
│   └── QueueFull       the queue of a stream, or of the engine's commands, is full
├── Misuse              the calling code: a bug there, never a client's doing
│   ├── UnknownStream   the stream was never opened, or is closed already
│   ├── AlreadyOpen     the stream was opened twice
│   ├── StaleHandle     the handle's slot was released, or belongs to another pool
│   ├── RepeatedHandle  one stream appears twice in a batch
│   ├── WrongInput      a step's array has another shape or dtype than the model takes
│   └── WrongState      a state to restore has another size than the model's, or the stream has steps waiting
├── StepFailed          the model: its step raised, and that error is the __cause__, or gave too many or too few rows
└── EngineDown          the operator: the model thread has ended, or does not end
"""


class BatchingError(Exception):
    """Base of everything that this package raises on purpose."""


class Overloaded(BatchingError):
    """More work was offered than the bounds allow."""


class PoolFull(Overloaded):
    """Every slot of the model is taken."""


class QueueFull(Overloaded):
    """The queue of a stream, or of the engine's commands, is full."""


class Misuse(BatchingError):
    """The calling code broke a rule of this package."""


class UnknownStream(Misuse):
    """The stream was never opened, or is closed already."""


class AlreadyOpen(Misuse):
    """The stream was opened twice."""


class StaleHandle(Misuse):
    """The handle's slot was released, or belongs to another pool."""


class RepeatedHandle(Misuse):
    """One stream appears twice in a batch."""


class WrongInput(Misuse):
    """A step's array has another shape or dtype than the model takes."""


class WrongState(Misuse):
    """A state to restore has another size than the model's, or the stream has steps waiting."""


class StepFailed(BatchingError):
    """The model's step raised, which is the `__cause__`, or returned too many or too few rows."""


class EngineDown(BatchingError):
    """The model thread has ended, or does not end."""
