"""Routing with extra constraints: the shortest path through n cities with a given start and end (TSP-SE), and with a
priority city that must be visited early (TSP-PRI)."""
