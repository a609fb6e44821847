"""The demo's prompts: a narrow workload of short work emails, split so that no name, company or matter is in both halves.

Every prompt is made of a form (at most seven words in a row are fixed), a person and a matter; forms are shared, persons
and matters are not, so no eight words in a row of a measured prompt stand in a training prompt.
"""

import itertools
import json
import random
from pathlib import Path

_FORMS = (
    "Write a short email to {person} about {matter}.",
    "Draft a polite email to {person} regarding {matter}.",
    "Please email {person} about {matter}.",
    "Email {person} briefly about {matter}.",
)

_TRAINING_PERSONS = (
    "Anna",
    "Ben",
    "Carla",
    "David",
    "Elena",
    "Frank",
    "Grace",
    "Hassan",
    "Ingrid",
    "Jonas",
    "Katya",
    "Liam",
    "Maria",
    "Nikhil",
    "Olivia",
    "Pedro",
    "Rosa",
    "Stefan",
    "Tara",
    "Viktor",
)
_TRAINING_MATTERS = (
    "the late delivery of office chairs",
    "next week's budget meeting",
    "a broken printer on the second floor",
    "the new parking rules",
    "an unpaid invoice from March",
    "the design of the spring catalogue",
    "a vacation request for August",
    "the results of the customer survey",
    "moving the training to Thursday",
    "a missing laptop charger",
    "the draft of the annual report",
    "a delay in the software release",
    "ordering coffee for the kitchen",
    "the visit of the auditors",
    "a mistake in the price list",
    "the plan for the trade fair",
    "the open position in sales",
    "a password reset",
    "the repair of the loading dock",
    "feedback on the product video",
    "the seating plan for the dinner",
    "a refund for a damaged parcel",
    "the schedule for the summer interns",
    "the contract with the cleaning company",
    "a change of the meeting room",
    "the photos for the website",
    "the shipment of sample tiles",
    "the minutes of Monday's call",
    "a discount for a loyal customer",
    "the safety inspection in June",
    "new business cards",
    "the translation of the manual",
)
_MEASURED_PERSONS = ("Aisha", "Bruno", "Chloe", "Dmitri", "Emma", "Felix", "Hannah", "Ivan", "Julia", "Marco")
_MEASURED_MATTERS = (
    "a leaking roof in the warehouse",
    "tickets for the jazz concert",
    "the expired license of the camera software",
    "hiring a second receptionist",
    "the colour of the new uniforms",
    "a lost suitcase in Lisbon",
    "the quarterly sales figures",
    "a farewell gift for Robert",
    "the noise from the construction site",
    "an invitation to the charity run",
)

GENERAL = (
    "Explain how a rainbow forms.",
    "What are three good habits for saving money?",
    "Describe the life of a honey bee.",
    "Why do leaves change colour in autumn?",
    "Give me a simple recipe for tomato soup.",
    "What is the difference between weather and climate?",
    "How does a bicycle stay upright?",
    "Tell me a short story about a lighthouse keeper.",
    "List the steps to change a flat tyre.",
    "What makes bread rise?",
    "Explain what a prime number is.",
    "Who were the Vikings?",
    "How do vaccines work?",
    "Write four lines of verse about the sea.",
    "What should I pack for a hike in the mountains?",
    "Why is sleep important?",
)


def training_prompts(number: int) -> list[str]:
    """The first `number` training prompts, in a fixed random order."""
    return _mixed(_TRAINING_PERSONS, _TRAINING_MATTERS, number)


def measured_prompts(number: int) -> list[str]:
    """The first `number` held-out prompts of the same workload."""
    return _mixed(_MEASURED_PERSONS, _MEASURED_MATTERS, number)


def _mixed(persons: tuple[str, ...], matters: tuple[str, ...], number: int) -> list[str]:
    combinations = list(itertools.product(persons, matters))
    random.Random(0).shuffle(combinations)
    return [_FORMS[i % len(_FORMS)].format(person=person, matter=matter) for i, (person, matter) in enumerate(combinations[:number])]


def write_prompt_file(path: Path, prompts: list[str]) -> None:
    """Write prompts in OpenAI's shape."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = ({"messages": [{"role": "user", "content": prompt}]} for prompt in prompts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
