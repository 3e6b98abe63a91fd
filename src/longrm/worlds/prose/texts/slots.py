"""Words that several kinds of text fill their forms with."""


def _split(text: str) -> tuple[str, ...]:
    return tuple(" ".join(part.split()) for part in text.split(","))


PEOPLE = _split(
    """
    Mrs. Abbott, Mr. Baxter, Ms. Carver, Dr. Doyle, Mr. Eddings, Mrs. Frost, Ms. Gable, Mr. Hobbs, Dr. Irwin,
    Mrs. Joyner, Mr. Keller, Ms. Lowry, Mr. Mabry, Mrs. Noble, Dr. Ogden, Ms. Purcell, Mr. Quinn, Mrs. Rhodes,
    Mr. Sloan, Ms. Tuttle, Dr. Upton, Mr. Vickers, Mrs. Weaver, Ms. Yarrow, Mr. Zimmer, Mrs. Ames, Mr. Bloom,
    Ms. Cobb, Mr. Dyer, Mrs. Eubanks
    """
)
HANDLES = _split(
    "ana, caleb, dora, elif, felix, gus, hana, ines, jonas, kofi, lena, milo, nora, omar, pia, quentin"
)
ROOMS = _split(
    """
    the main hall, the upstairs office, the back room, the entrance, the storeroom, the meeting room, the kitchen,
    the staircase, the cellar, the reading room, the basement, the parking area, the corridor, the attic,
    the loading bay, the waiting room, the lobby, the print room, the annex, the canteen
    """
)
PARTS = _split(
    """
    heating, lighting, plumbing, ventilation, elevator, alarm, flooring, wiring, drainage, insulation, intercom,
    paintwork, guttering, shelving, signage, boiler, switchboard, thermostat
    """
)
NUMBERS = tuple(str(number) for number in range(12, 99) if number % 10)
SMALL = _split("two, three, four, five, six, seven, eight, nine, ten, eleven, twelve")
WEEKDAYS = _split("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday")
SEASONS = _split("spring, summer, autumn, winter, the new year, the holidays")
EVERYDAY = {
    "part": PARTS,
    "room": ROOMS,
    "number": NUMBERS,
    "few": SMALL,
    "weekday": WEEKDAYS,
    "season": SEASONS,
}
"""The slots of every kind of text that is about a place and its people."""
