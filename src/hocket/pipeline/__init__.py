"""Pipeline schedules as tables: made, checked, simulated, drawn, chosen, and handed to an executor.

Needs NumPy alone. Names are loaded when they are asked for.
"""
