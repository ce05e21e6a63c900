"""A small user-written game, for tests of tables and of groups of games."""

from functools import partial

from rolltrace.envs.game import Game, GameResult
from rolltrace.envs.game_group import GameGroup


class Countdown(Game):
    """Players take 1 or 2 from a heap in turn; taking the last wins 1, the others lose 1. Each has a secret."""

    def __init__(self, heap=5, seats=2):
        self.seats = seats
        self.heap = heap
        self.on_turn = 0
        self.news = {seat: [f"You are {seat}. Your secret is s{seat}cret."] for seat in range(seats)}

    @property
    def turn(self):
        return self.on_turn if self.heap else None

    def observation_for(self, seat):
        news, self.news[seat] = self.news[seat], []
        return "\n".join(news)

    def move(self, text):
        if text == "crash":
            raise RuntimeError("the heap fell over")
        if text not in ("1", "2") or int(text) > self.heap:
            self.news[self.on_turn].append("That is no move.")
            return False
        self.heap -= int(text)
        for seat in range(self.seats):
            if seat != self.on_turn:
                self.news[seat].append(f"{self.on_turn} took {text}, {self.heap} are left.")
        self.winner = self.on_turn
        self.on_turn = (self.on_turn + 1) % self.seats
        return True

    def result(self):
        if self.heap:
            return GameResult()
        rewards = {seat: 1.0 if seat == self.winner else -1.0 for seat in range(self.seats)}
        return GameResult(rewards, f"{self.winner} took the last.", {"winner": self.winner})


def start(heap, seats, seed):
    """A fresh game without randomness."""
    return Countdown(heap, seats)


def countdowns(heap=5, seats=2, **settings):
    """A few games of it."""
    return GameGroup(env="countdown", task="heap", make_game=partial(start, heap, seats), players=seats, **settings)
