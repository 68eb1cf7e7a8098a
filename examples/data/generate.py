#!/usr/bin/env python3
"""Writes harbour.txt: a harbour master's log of some years, made up from word lists.

The same text on every machine: the only randomness is the generator below, which is part of this file.
"""

LIMIT = 500_000  # bytes


class Dice:
    """A 64-bit linear congruential generator."""

    def __init__(self, seed):
        self.state = seed

    def below(self, n):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) * n >> 31

    def one_of(self, things):
        return things[self.below(len(things))]


SHIPS = ("Agathe Larsen", "Brise du Nord", "Corvina", "Dame Élodie", "Eendracht", "Falkenstein", "Gullfoss", "Hvidøre",
         "Ingeborg", "Jolie Brise", "Kestrel", "Lady Margaret", "Møllevik", "Niña de Cádiz", "Oriole", "Peregrine",
         "Queen of the Sound", "Røst", "Sankt Göran", "Tern", "Uller", "Vesterhavet", "Willem Barents", "Zéphyr")
KINDS = ("barque", "brig", "collier", "cutter", "dredger", "fishing smack", "lighter", "mail packet", "pilot boat",
         "schooner", "steam trawler", "tug")
PORTS = ("Ålesund", "Antwerp", "Bergen", "Cherbourg", "Dunkirk", "Esbjerg", "Göteborg", "Hull", "Kiel", "Leith",
         "Oporto", "Riga", "Stavanger", "Tórshavn", "Visby", "Whitby")
CARGO = ("barrels of salted herring", "bales of wool", "tons of coal", "crates of glass", "planks of pine",
         "sacks of rye", "coils of rope", "casks of oil", "tons of slate", "cases of tea", "bundles of hides")
WINDS = ("north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west")
FORCES = ("light airs from the", "a gentle breeze from the", "a fresh breeze from the", "half a gale from the",
          "a hard blow from the")
SKIES = ("clear", "overcast", "hazy", "low cloud with drizzle", "broken cloud", "fog until noon", "snow showers",
         "bright after early rain")
PEOPLE = ("the harbour master", "the second pilot", "the customs officer", "the master of the dredger", "Mrs Aune",
          "the lamp keeper", "the surveyor", "old Tobias from the slip", "the night watchman", "the schoolteacher")
DEEDS = ("reported a broken mooring ring at the east quay", "asked for more lamp oil", "counted the buoys and found one adrift",
         "took soundings off the mole", "complained again about the smell of the herring sheds",
         "brought the new tide tables", "found the ice too thin to walk on", "repaired the signal mast",
         "had the crane greased before the spring tide", "signed for two new hawsers", "saw a whale beyond the bar",
         "took the ferry across and did not come back until dark")
MONTHS = (("January", 31), ("February", 28), ("March", 31), ("April", 30), ("May", 31), ("June", 30), ("July", 31),
          ("August", 31), ("September", 30), ("October", 31), ("November", 30), ("December", 31))


def clock(dice):
    return f"{dice.below(24):02}:{dice.below(60):02}"


def weather(dice):
    return (f"{dice.one_of(SKIES).capitalize()}; {dice.one_of(FORCES)} {dice.one_of(WINDS)}. Glass at "
            f"{980 + dice.below(60)} hPa, air {dice.below(31) - 8} °C, water {dice.below(17) + 1} °C.")


def arrival(dice):
    ship, kind, port = dice.one_of(SHIPS), dice.one_of(KINDS), dice.one_of(PORTS)
    load = f"{dice.below(880) + 20} {dice.one_of(CARGO)}"
    ends = (f"Berth {dice.below(14) + 1}.", f"She sails for {dice.one_of(PORTS)} with the next tide.",
            f"Draught {dice.below(50) / 10 + 2:.1f} m; dues paid.", "The master dines ashore.",
            f"Left again at {clock(dice)} in ballast.")
    return f"{clock(dice)}  The {kind} “{ship}” from {port} with {load}. {dice.one_of(ends)}"


def remark(dice):
    who, deed = dice.one_of(PEOPLE), dice.one_of(DEEDS)
    text = f"{who[0].upper()}{who[1:]} {deed}"
    if dice.below(3) == 0:
        text += f", and {dice.one_of(PEOPLE)} {dice.one_of(DEEDS)}"
    return text + "."


def day(dice, date):
    lines = [date, "", weather(dice)]
    lines += sorted(arrival(dice) for _ in range(dice.below(5)))
    lines += [remark(dice) for _ in range(dice.below(3))]
    return "\n".join(lines) + "\n\n"


def main():
    dice = Dice(1887)
    parts, size, year = ["LOG OF THE HARBOUR AT SØRVÅG\n\n"], 0, 1887
    while True:
        for month, days in MONTHS:
            for d in range(1, days + 1):
                text = day(dice, f"{d} {month} {year}")
                size += len(text.encode())
                if size > LIMIT:
                    with open(__file__.replace("generate.py", "harbour.txt"), "w", encoding="utf-8", newline="\n") as out:
                        out.write("".join(parts))
                    return
                parts.append(text)
        year += 1


main()
