"""What can go wrong with a language model.

ModelError
└── LanguageModelError   the operator: the file is missing, damaged, or not what it says it is; or a text is of no use
"""

from model.errors import ModelError


class LanguageModelError(ModelError):
    """A language model or the text for one cannot be used; the message names the file, and the line if there is one."""
