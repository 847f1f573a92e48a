"""What each task brings, declared once: one module a task, found by name through `echelon.recipe.tasks`.

Part of the control half: what needs torch is imported when it is asked for.
"""
