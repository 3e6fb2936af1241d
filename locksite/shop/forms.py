"""The form of a purchase."""

from __future__ import annotations

import unicodedata

from django import forms
from django.core.exceptions import ValidationError

MAX_SEATS = 6


def printable(value: str) -> None:
    """Refuse control characters and halves of surrogate pairs, which no ticket can show."""
    if any(unicodedata.category(character) in {"Cc", "Cs"} for character in value):
        raise ValidationError("Please leave out control characters.")


class BuyForm(forms.Form):
    quantity = forms.TypedChoiceField(
        label="Seats",
        choices=[(n, str(n)) for n in range(1, MAX_SEATS + 1)],
        coerce=int,
        error_messages={"invalid_choice": f"Please choose 1 to {MAX_SEATS} seats."},
    )
    buyer = forms.CharField(
        label="Your name",
        max_length=60,
        validators=[printable],
        widget=forms.TextInput(attrs={"autocomplete": "name", "placeholder": "Ada Lovelace"}),
        error_messages={"required": "Please give a name for the ticket."},
    )
