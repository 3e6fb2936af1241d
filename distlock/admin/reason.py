"""Why someone releases a lock that is not theirs."""

from __future__ import annotations

from django import forms
from django.utils.translation import gettext_lazy as _

#: The most characters of a reason.
LONGEST = 500


class ReasonForm(forms.Form):
    """Asks for a reason; without one nothing is released."""

    reason = forms.CharField(
        label=_("Reason"),
        max_length=LONGEST,
        help_text=_("It is written to the log with your name, the owner and the token."),
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        error_messages={"required": _("Please say why.")},
    )
